"""Requests for completions, and what comes back: ids both ways, so that nobody reads a text twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

from mt_core import UsageError
from mt_core.generation import GenerationConfig, SamplingRules

from .errors import ServerAnswerError

KNOWN_RULES = {"greedy", "temperature", "top_k", "top_p", "min_p", "min_new_tokens"}
"""Rules that vLLM has under one name and with one formula."""


@dataclass(frozen=True)
class PromptGroup:
    """Answers to one prompt: the first is number ``first`` of all, and there are ``count``."""

    prompt: tuple[int, ...]
    first: int
    count: int


def group_prompts(prompts: Sequence[Sequence[int]]) -> Iterator[PromptGroup]:
    """Yield prompts that are the same and stand side by side as one."""
    start = 0
    while start < len(prompts):
        prompt, end = tuple(prompts[start]), start + 1
        while end < len(prompts) and tuple(prompts[end]) == prompt:
            end += 1
        yield PromptGroup(prompt, start, end - start)
        start = end


def refuse_unknown_rules(
    config: GenerationConfig, what: str = "sampler", instead: str = "let the trainer write (--sampler own)"
) -> None:
    """Raise ``UsageError`` for what the server would do otherwise than the trainer, or not at all."""
    usual = SamplingRules()
    rules = {each.name: getattr(config.rules, each.name) for each in fields(SamplingRules)}
    odd = [name for name, value in rules.items() if name not in KNOWN_RULES and value != getattr(usual, name)]
    odd += [name for name in ("stop", "choices") if getattr(config, name)]
    if odd:
        raise UsageError(f"{what} vllm has no {', '.join(odd)}; leave it out, or {instead}")


def draws_from_all(rules: SamplingRules) -> bool:
    """Return whether each token is drawn from all of them, so that its log-probability is that of the model."""
    cut = (rules.top_k is not None, rules.top_p not in (None, 1.0), bool(rules.min_p), bool(rules.min_new_tokens))
    return rules.draws and not any(cut)


def completion_request(
    group: PromptGroup, config: GenerationConfig, eos_ids: Sequence[int], model: str
) -> Mapping[str, Any]:
    """Return the request for the answers to one prompt.

    Every rule is said: what a request leaves out is taken from the ``generation_config.json`` of the model that is served. The seed
    follows from that of the iteration and the place of the prompt, so that a run that asks again asks the same.
    """
    rules = config.rules
    return {
        "model": model,
        "prompt": list(group.prompt),
        "n": group.count,
        "max_tokens": config.max_new_tokens,
        "min_tokens": rules.min_new_tokens,
        "seed": int.from_bytes(blake2b(f"{config.seed} {group.first}".encode(), digest_size=6).digest()),
        "temperature": 0.0 if rules.greedy else rules.temperature,
        "top_k": rules.top_k or -1,
        "top_p": 1.0 if rules.top_p is None else rules.top_p,
        "min_p": rules.min_p or 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "stop_token_ids": list(eos_ids),
        "stop": list(config.stop),
        "logprobs": 1,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def probe_request(ids: Sequence[int], model: str) -> Mapping[str, Any]:
    """Return the request for log-probabilities of given tokens, which are a prompt to it."""
    return {
        "model": model,
        "prompt": list(ids),
        "max_tokens": 1,
        "temperature": 1.0,
        "top_k": -1,
        "top_p": 1.0,
        "prompt_logprobs": 1,
    }


@dataclass(frozen=True)
class ServerAnswer:
    """An answer as the server wrote it; ``logprobs`` are those of ``ids``, in nats."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str


def read_choice(choice: Mapping[str, Any], group: PromptGroup, eos_ids: Sequence[int]) -> ServerAnswer:
    """Read one answer. Raises ``ServerAnswerError`` for one that lacks something, and for one to another prompt."""
    ids: Any = choice.get("token_ids")
    logprobs: Any = (choice.get("logprobs") or {}).get("token_logprobs")
    seen, reason = choice.get("prompt_token_ids"), choice.get("finish_reason")
    if not _are(ids, int) or not ids:
        raise ServerAnswerError(
            f"the server gives an answer with token_ids {_shorten(ids)}; they are asked for by return_token_ids. Is it vLLM 0.20 or later?"
        )
    if seen is not None and seen != list(group.prompt):
        raise ServerAnswerError(
            f"the server read the prompt {_shorten(seen)}, and {_shorten(list(group.prompt))} was asked; it must add nothing to ids"
        )
    if not _are(logprobs, int | float) or len(logprobs) != len(ids) or not all(map(math.isfinite, logprobs)):
        raise ServerAnswerError(
            f"the server gives {len(ids)} tokens the log-probabilities {_shorten(logprobs)}; one finite number each was asked for"
        )
    if reason not in ("stop", "length"):
        raise ServerAnswerError(f"an answer of the server ended by {reason!r}; look at its log")
    finish = "eos" if ids[-1] in eos_ids else reason
    return ServerAnswer(tuple(ids), tuple(map(float, logprobs)), finish)


def read_prompt_logprobs(choice: Mapping[str, Any], ids: Sequence[int]) -> list[float]:
    """Return how likely each token but the first is after those before (nats). Raises ``ServerAnswerError``."""
    found = choice.get("prompt_logprobs")
    try:
        values = [float(found[place][str(ids[place])]["logprob"]) for place in range(1, len(ids))]  # type: ignore[index]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerAnswerError(
            f"the server gives the prompt_logprobs {_shorten(found)}, which is not one value for each of {len(ids)} tokens"
        ) from error
    return values


def _are(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, kind) and not isinstance(each, bool) for each in values)


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
