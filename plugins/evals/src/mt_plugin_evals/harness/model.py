"""Subject of an evaluation as a model of lm-evaluation-harness: texts to ids as its own Hugging Face model does it.

Imports lm_eval, which takes seconds: imported when the evaluation runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from mt_core import UsageError, begin_ids
from mt_core.evaluation import Continuation, Subject
from mt_core.generation import Generation, GenerationConfig, SamplingRules

from ..generated.asking import turn_answer, with_turn_end
from .chat import chat_text
from .config import Begin

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
_SEARCH = ("num_beams", "length_penalty", "early_stopping", "repetition_penalty")

MOST_NEW = 256
"""Tokens of an answer where a task says nothing, as in lm-evaluation-harness."""


class SubjectLM(TemplateLM):  # type: ignore[misc]
    """Answers the requests of lm-evaluation-harness. ``counts`` says how often something had to be cut."""

    def __init__(self, subject: Subject, *, bos: Begin = "run", chat: bool = False, seed: int = 0) -> None:
        super().__init__()
        self._subject, self._seed, self._chat = subject, seed, chat
        self._begin = _begin(subject, bos)
        self.counts: Counter[str] = Counter()

    @property
    def eot_token_id(self) -> int:
        """See ``TemplateLM``. Raises ``UsageError`` where the tokenizer has no end token."""
        end = self._subject.tokenizer.eos_id
        if end is None:
            raise UsageError(
                "the tokenizer has neither a begin nor an end token, and lm-evaluation-harness puts one in front of texts;"
                " name one (--tokenizer.eos-token)"
            )
        return end

    @property
    def prefix_token_id(self) -> int:
        """See ``TemplateLM``: the begin token, else the end token."""
        begin = self._subject.tokenizer.bos_id
        return self.eot_token_id if begin is None else begin

    @property
    def max_length(self) -> int:
        """Longest context (tokens)."""
        return self._subject.max_seq_len

    @property
    def tokenizer_name(self) -> str:
        """See ``LM``: part of the key of a cache, which is never used."""
        return ""

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """See ``TemplateLM``. A text that spells the begin token, as rendered conversations do, gets no second one."""
        ids = self._subject.tokenizer.encode(string)
        if add_special_tokens is False or not self._begin or ids[:1] == [self.prefix_token_id]:
            return ids
        return [*self._begin, *ids]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """See ``LM``: by the template of the run."""
        return chat_text(self._subject, chat_history, speak=add_generation_prompt)

    # ------------------------------------------------------------------------------------------------------- scores

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """See ``LM``. Raises ``UsageError`` that names the request of which nothing is left to score."""
        return self._loglikelihood_tokens([(_place(request), *self._pair(request)) for request in requests])

    def _pair(self, request: Instance) -> tuple[list[int], list[int]]:
        context, continuation = request.args
        if context:
            before, after = self._encode_pair(context, continuation)
        else:
            before, after = [self.prefix_token_id], self.tok_encode(continuation, add_special_tokens=False)
            if after[:1] == before:
                after = after[1:]
        if not after:
            raise UsageError(
                f"{_place(request)}: nothing of {continuation!r} is left to score after {context[-40:]!r}: the tokenizer makes one"
                " token across the border. Change the task's target_delimiter, or leave the task out"
            )
        return before, after

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """See ``TemplateLM``. What is too long loses the beginning of its context, which is counted."""
        asked = []
        for place, context, target in requests:
            room = self.max_length + 1 - len(target)
            if room < 1:
                raise UsageError(
                    f"{place}: the text to score has {len(target)} tokens, and the model takes {self.max_length} with what is before it;"
                    " shorten it, or leave the task out"
                )
            self.counts["cut"] += len(context) > room
            asked.append(Continuation(context[-room:], target))
        return [(score.logprob, score.greedy) for score in self._subject.score(asked)]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[float]:
        """See ``LM``: windows of the whole context, in which each token is predicted once."""
        windows: list[tuple[str, list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            found = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for context, target in map(make_disjoint_window, found):
                windows.append((_place(request), context, target))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += logprob
        return totals

    # -------------------------------------------------------------------------------------------------------- texts

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[str]:
        """See ``LM``: one call for all requests with the same wishes."""
        groups: dict[str, list[int]] = {}
        prompts: list[list[int]] = []
        wishes: list[dict[str, Any]] = []
        for number, request in enumerate(requests):
            wish = normalize_gen_kwargs(dict(request.args[1]), MOST_NEW)
            prompt, wish["max_gen_toks"] = self._fit(self.tok_encode(request.args[0]), int(wish["max_gen_toks"]))
            prompts.append(prompt)
            wishes.append(wish)
            groups.setdefault(json.dumps(wish, sort_keys=True, default=str), []).append(number)
        texts = [""] * len(requests)
        for numbers in groups.values():
            config = self._config(wishes[numbers[0]], _place(requests[numbers[0]]))
            answers = self._subject.generate([prompts[number] for number in numbers], config)
            for number, answer in zip(numbers, answers, strict=True):
                texts[number] = self._text(answer, wishes[number]["until"])
        return texts

    def _fit(self, prompt: list[int], wanted: int) -> tuple[list[int], int]:
        """Cut a prompt on the left where prompt and answer are too long together. Prompts keep half of the context at least."""
        most = min(wanted, max(self.max_length // 2, self.max_length - len(prompt)))
        room = self.max_length - most
        self.counts["shortened"] += most < wanted
        self.counts["cut"] += len(prompt) > room
        return prompt[-room:], most

    def _config(self, wishes: Mapping[str, Any], place: str) -> GenerationConfig:
        """Return what a task wishes; what cannot be done is refused, and what has no effect beside greedy decoding left out."""
        greedy = not wishes["do_sample"]
        beams = int(wishes.get("num_beams") or 1)
        rules = {key: value for key, value in wishes.items() if key not in ("until", "max_gen_toks", "do_sample")}
        if unknown := sorted(set(rules) - {*_SAMPLING, *_SEARCH}):
            raise UsageError(
                f"{place}: the task wants {', '.join(unknown)} in generation_kwargs, which cannot be done here; known are until,"
                f" max_gen_toks, do_sample, {', '.join((*_SAMPLING, *_SEARCH))}"
            )
        if greedy:
            rules = {key: value for key, value in rules.items() if key not in _SAMPLING}
        if beams == 1:
            rules = {key: value for key, value in rules.items() if key not in ("length_penalty", "early_stopping")}
        special = getattr(self._subject.tokenizer, "special_ids", ())
        stop = tuple(dict.fromkeys(text for text in wishes["until"] if text and _may_end(text, special)))
        config = GenerationConfig(
            rules=SamplingRules(greedy=greedy and beams == 1, **rules),
            max_new_tokens=wishes["max_gen_toks"],
            stop=() if beams > 1 else stop,
            seed=self._seed,
        )
        return with_turn_end(self._subject, config) if self._chat else config

    def _text(self, answer: Generation, until: Sequence[str]) -> str:
        """Return the text before every stop text; a conversation's answer ends with its turn."""
        text = turn_answer(self._subject, answer).text if self._chat else answer.text
        for stop in until:
            text = text.split(stop)[0] if stop else text
        return text


def _may_end(stop: str, special: Collection[str]) -> bool:
    """Return whether a text may end at ``stop``: one with a special token and more (``<|user|>you``, as tasks have it) is in none."""
    return stop.rstrip() in special or not any(name in stop for name in special if name)


def _begin(subject: Subject, bos: Begin) -> tuple[int, ...]:
    tokenizer = subject.tokenizer
    if bos == "run":
        return begin_ids(tokenizer)
    if bos == "none":
        return ()
    if tokenizer.bos_id is None:
        raise UsageError(
            "bos is always, and the tokenizer has no begin token; name it (--tokenizer.bos-token), or take bos run"
        )
    return (tokenizer.bos_id,)


def _place(request: Instance) -> str:
    """Name a request for a message."""
    return f"task {request.task_name}, document {request.doc_id}"
