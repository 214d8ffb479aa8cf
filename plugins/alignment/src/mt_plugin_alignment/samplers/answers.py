"""Answers by the sampler of a run: each checked, and a fault named with the sampler it is of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mt_core import ComponentError, MtError, UsageError
from mt_train import describe_failure

from .base import BoundsEach, Completion
from .own import OwnConfig, OwnSampler

if TYPE_CHECKING:
    from mt_core.generation import GenerationConfig, SamplingRules
    from mt_train import Policy

    from .base import Sampler

FINISHES = ("eos", "stop", "length", "context")
"""Reasons why an answer ends (``mt_core.generation.Generation``)."""


def write_answers(
    sampler: Sampler | None,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    rooms: Sequence[int] | None = None,
) -> list[Completion]:
    """Return an answer to each prompt (ids), by the trainer itself where the run names no sampler. Every rank asks the same.

    ``rooms`` are the most tokens that each answer may have, for a sampler that takes them (``BoundsEach``); others know the largest alone.
    Raises ``ComponentError`` for a sampler that raises, gives another number of answers than there are prompts, or one that is none.
    """
    chosen = OwnSampler(OwnConfig()) if sampler is None else sampler
    name = type(chosen).__name__
    try:
        if rooms is not None and isinstance(chosen, BoundsEach):
            found = list(chosen.sample_within(policy, prompts, config, rooms))
        else:
            found = list(chosen.sample(policy, prompts, config))
    except MtError:
        raise
    except Exception as error:  # a sampler's code may raise anything; whose it is has to be said
        raise ComponentError(f"{name} failed: {describe_failure(error)}") from error
    if len(found) != len(prompts):
        raise ComponentError(f"{name} gives {len(found)} answers to {len(prompts)} prompts; give one to each")
    for number, answer in enumerate(found):
        if wrong := _find_fault(answer, config):
            raise ComponentError(f"{name} gives prompt {number} an answer {wrong}")
    return found


def refuse_partial_support(sampler: Sampler | None, rules: SamplingRules) -> None:
    """Raise ``UsageError`` where answers are not drawn from all tokens as likely as ``logprobs`` say: nothing may be divided by those."""
    cut = {"top_k": rules.top_k, "top_p": rules.top_p, "min_p": rules.min_p or None, "typical_p": rules.typical_p}
    named = [f"{name}={value:g}" for name, value in cut.items() if value is not None and (name, value) != ("top_p", 1)]
    reasons = [f"{', '.join(named)} leaves out unlikely tokens"] if named else []
    if not rules.draws:
        reasons.append("the likeliest token is taken, and nothing drawn")
    if sampler is not None and not sampler.full_support:
        reasons.append(f"{type(sampler).__name__} does not draw from all tokens (full_support is False)")
    if reasons:
        raise UsageError(
            f"importance correction divides by how likely the sampler's tokens were among all, and {'; '.join(reasons)}."
            " Leave one of the two out"
        )


def _find_fault(answer: Completion, config: GenerationConfig) -> str:
    """Return what is wrong with an answer, as the end of a sentence; empty where nothing is."""
    ids = list(answer.ids)
    count = len(ids) - (answer.finish == "eos")
    logprobs = answer.logprobs
    if not ids:
        return "without tokens; one that ends at once has the end token"
    if wrong := [each for each in ids if not isinstance(each, int) or each < 0]:
        return f"with {wrong[0]!r} among its ids, which are whole numbers, 0 or above"
    if count > config.max_new_tokens:
        return f"of {count} tokens, and at most {config.max_new_tokens} were asked for"
    if answer.finish not in FINISHES:
        return f"that ended by {answer.finish!r}; say one of {', '.join(FINISHES)}"
    if logprobs is not None and (len(logprobs) != len(ids) or not all(map(math.isfinite, logprobs))):
        return f"of {len(ids)} tokens with logprobs {list(logprobs)[:8]!r} ({len(logprobs)}); give each token a finite one, or None"
    return ""
