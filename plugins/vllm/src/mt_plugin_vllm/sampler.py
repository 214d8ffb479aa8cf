"""The sampler: weights to the server, prompts to the server, and a look at whether both are of one model.

Shapes: B rows, T tokens, D model width, n trained tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from mt_core import Sample

from .completions import (
    PromptGroup,
    ServerAnswer,
    completion_request,
    draws_from_all,
    group_prompts,
    probe_request,
    read_choice,
    read_prompt_logprobs,
    refuse_unknown_rules,
)
from .config import VllmConfig
from .errors import ERRORS, OtherWeightsError, SamplerError, ServerUnreachableError
from .proof import WeightsProof, distance, refuse_distance
from .server import LONGEST_WAIT, Server
from .weights import WeightsFolder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mt_core import Template, Tokenizer
    from mt_core.generation import GenerationConfig
    from mt_core.nn import Batch

PROBE, COMPARED = 64, 4
"""Tokens of the probe, and answers whose log-probabilities are compared in each iteration."""


class Policy(Protocol):
    """The part of a run's model that is used (``mt_train.Policy``)."""

    tokenizer: Tokenizer
    template: Template | None
    eos_ids: tuple[int, ...]
    version: int

    def measure(self, samples: Sequence[Sample], measure: Callable[..., Any]) -> Sequence[Mapping[str, Any]]:
        """Give values of trained tokens."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole weights, on every rank."""
        ...

    def once(self, function: Callable[[], Any]) -> Any:
        """Call on one rank, and share what it gives."""
        ...


@dataclass(frozen=True)
class Completion:
    """An answer (that of mt-plugin-alignment)."""

    text: str
    ids: Sequence[int]
    finish: str
    logprobs: Sequence[float] | None


class VllmSampler:
    """Asks a server. What it was told and what it has answered lies on no disk: a run that goes on sends the weights anew."""

    full_support = True

    def __init__(self, config: VllmConfig) -> None:
        self._config = config
        self._server = Server(config.url, timeout=config.timeout)
        self._folder = WeightsFolder(config.folder)
        self._proof = WeightsProof(config.tolerance)
        self._model = config.served_model
        self._probe: tuple[int, ...] = ()
        self._version: int | None = None
        """Version of the weights that the server has; ``None`` where nobody knows."""

    def sample(self, policy: Policy, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[Completion]:
        """Return an answer to each prompt (ids). Raises ``SamplerError``."""
        return self.sample_within(policy, prompts, config, [config.max_new_tokens] * len(prompts))

    def sample_within(
        self, policy: Policy, prompts: Sequence[Sequence[int]], config: GenerationConfig, rooms: Sequence[int]
    ) -> list[Completion]:
        """Return what ``sample`` does, each answer of at most so many tokens: the server refuses more than its context has."""
        refuse_unknown_rules(config)
        if not prompts:
            return []
        for attempt in range(self._config.retries + 1):
            try:
                return self._sample(policy, prompts, config, rooms)
            except ServerUnreachableError:
                self._version = None  # one that comes back begins with the weights of its start
                if attempt == self._config.retries:
                    raise
            time.sleep(min(2.0**attempt, LONGEST_WAIT))
        raise AssertionError("the last attempt returns or raises")

    def _sample(
        self, policy: Policy, prompts: Sequence[Sequence[int]], config: GenerationConfig, rooms: Sequence[int]
    ) -> list[Completion]:
        if self._model is None:
            self._model = _share(policy, self._server.first_model)
        if self._version != policy.version:
            self._version = None
            self._send_weights(policy)
            longest = max(len(prompt) + room for prompt, room in zip(prompts, rooms, strict=True))
            self._prove(policy, prompts, longest)
            self._version = policy.version
        found = _share(policy, lambda: [asdict(each) for each in self._ask(policy, prompts, config, rooms)])
        answers = [ServerAnswer(tuple(each["ids"]), tuple(each["logprobs"]), each["finish"]) for each in found]
        has_logprobs = draws_from_all(config.rules)
        if has_logprobs:
            self._compare_answers(policy, prompts, answers, config.rules.temperature)
        return [
            Completion(
                _text_of(each, policy),
                each.ids,
                each.finish,
                each.logprobs if has_logprobs and config.logprobs else None,
            )
            for each in answers
        ]

    # ---------------------------------------------------------------------------------------------------------- weights

    def _send_weights(self, policy: Policy) -> None:
        """Write the weights into a folder, which every rank helps to gather, and let the server read it."""
        _share(policy, partial(self._folder.begin, policy.version))
        for name, tensor in policy.weights():
            _share(policy, partial(self._folder.add, name, tensor))
        name = _share(policy, self._folder.finish)
        there = self._config.server_folder or self._config.folder.expanduser().absolute()
        _share(policy, partial(self._server.reload, there / name))

    def _prove(self, policy: Policy, prompts: Sequence[Sequence[int]], most: int) -> None:
        """Raise ``OtherWeightsError`` where the server does not have the weights of the policy. A row has room for ``most`` tokens."""
        if not self._probe:
            ids = [token for prompt in prompts for token in prompt] * 2  # one token alone has nothing before it
            self._probe = tuple(ids[: min(PROBE, max(most - 1, 2))])  # the server writes one more
        request = probe_request(self._probe, self._named_model)
        server = _share(policy, lambda: read_prompt_logprobs(self._server.complete(request)[0], self._probe))
        self._proof.compare(_measure(policy, [(self._probe[:1], self._probe[1:])], 1.0), server)

    def _compare_answers(
        self, policy: Policy, prompts: Sequence[Sequence[int]], answers: Sequence[ServerAnswer], temperature: float
    ) -> None:
        """Raise ``OtherWeightsError`` where the log-probabilities of the first answers are not those at this temperature."""
        pairs = [(prompt, each.ids) for prompt, each in zip(prompts[:COMPARED], answers, strict=False)]
        server = [value for each in answers[:COMPARED] for value in each.logprobs]
        trainer = _measure(policy, pairs, temperature)
        if temperature != 1 and 2 * distance(_measure(policy, pairs, 1.0), server) < distance(trainer, server):
            raise OtherWeightsError(
                f"the server's log-probabilities are those of temperature 1, and it draws at {temperature:g}; start it with"
                " --logprobs-mode processed_logprobs"
            )
        refuse_distance(trainer, server, self._config.tolerance, "answers")

    # ---------------------------------------------------------------------------------------------------------- answers

    def _ask(
        self, policy: Policy, prompts: Sequence[Sequence[int]], config: GenerationConfig, rooms: Sequence[int]
    ) -> list[ServerAnswer]:
        """Return the answers to all prompts, so many at a time."""
        groups = list(group_prompts(prompts))
        stop = _stop_of(policy)
        whole = replace(config, stop=(stop,) if stop else ())
        with ThreadPoolExecutor(min(self._config.requests, len(groups))) as pool:
            asked = [(each, replace(whole, max_new_tokens=rooms[each.first])) for each in groups]
            waiting = [pool.submit(self._ask_one, *each, policy.eos_ids) for each in asked]
            try:
                return [answer for each in waiting for answer in each.result()]
            finally:
                pool.shutdown(cancel_futures=True)  # after a fault, what has not begun need not be asked any more

    def _ask_one(self, group: PromptGroup, config: GenerationConfig, eos_ids: Sequence[int]) -> list[ServerAnswer]:
        choices = self._server.complete(completion_request(group, config, eos_ids, self._named_model))
        return [read_choice(each, group, eos_ids) for each in choices]

    @property
    def _named_model(self) -> str:
        assert self._model is not None, "it is asked for before anything else"
        return self._model


def _stop_of(policy: Policy) -> str | None:
    """Return the text that ends a turn of the template where no token does: an answer ends there, as in the trainer."""
    return None if policy.template is None else policy.template.stop_text


def _text_of(answer: ServerAnswer, policy: Policy) -> str:
    """Return the text of an answer without its end."""
    text, stop = policy.tokenizer.decode(answer.ids[:-1] if answer.finish == "eos" else answer.ids), _stop_of(policy)
    return text.partition(stop)[0] if stop else text


def _share(policy: Policy, function: Callable[[], Any]) -> Any:
    """Call a function on one rank, and return on every rank what it gave. An error of ours is raised by its name on every rank."""

    def call() -> Mapping[str, Any]:
        try:
            return {"found": function()}
        except SamplerError as error:
            return {"error": type(error).__name__, "text": str(error)}

    answer = policy.once(call)
    if "error" in answer:
        raise ERRORS[answer["error"]](answer["text"])
    return answer["found"]


def _measure(policy: Policy, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float) -> list[float]:
    """Return how likely the tokens of answers after their prompts are for the policy (nats), one after the other."""
    from mt_core.nn import token_logprobs

    def measure(hidden_BTD: Tensor, head: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"logprobs": token_logprobs(head, *batch.select_trained(hidden_BTD), temperature=temperature)[0]}

    samples = [
        Sample([*prompt, *ids], [False] * len(prompt) + [True] * len(ids), f"answer {number}")
        for number, (prompt, ids) in enumerate(pairs)
    ]
    return [float(value) for found in policy.measure(samples, measure) for value in found["logprobs"]]
