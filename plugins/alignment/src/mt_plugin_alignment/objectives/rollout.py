"""Answers that a policy writes, as records: what every objective that learns from rewards begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mt_core import Sample
from mt_core.generation import GenerationConfig, SamplingRules

from ..reward_functions.base import Answer
from ..scores import score_answers
from .grpo import _ids

if TYPE_CHECKING:
    from mt_train import Policy, Prompt, Record

    from ..reward_functions.base import Reward


def write_answers(
    prompts: Sequence[Prompt],
    policy: Policy,
    rewards: Mapping[str, Reward],
    *,
    group: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> list[dict[str, Any]]:
    """Return ``group`` answers to each prompt with their scores. Raises ``ComponentError`` for a reward that fails."""
    asked = [prompt for prompt in prompts for _ in range(group)]
    rules = SamplingRules(temperature=temperature)
    wanted = GenerationConfig(rules=rules, max_new_tokens=max_new_tokens, seed=seed)
    drawn = policy.generate([prompt.ids for prompt in asked], wanted, weights="auto")
    answers = [
        Answer(each.text, _ids(each), each.finish, prompt.row, number // group)
        for number, (prompt, each) in enumerate(zip(asked, drawn, strict=True))
    ]
    scores = score_answers(rewards, answers)
    return [
        {
            "row_id": prompt.row["id"],
            "group": answer.group,
            "prompt": list(prompt.ids),
            "ids": list(answer.ids),
            "text": answer.text,
            "finish": answer.finish,
            "rewards": {name: scores[name][number] for name in scores},
        }
        for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True))
    ]


def sample_of(record: Record, values: Mapping[str, Sequence[float]] | None = None) -> Sample:
    """Return the sample of an answer, whose tokens are trained; ``values`` are numbers for each of them, by name."""
    prompt, ids = record["prompt"], record["ids"]
    of_tokens = {name: [*(0.0 for _ in prompt), *each] for name, each in (values or {}).items()}
    trained = [False] * len(prompt) + [True] * len(ids)
    return Sample([*prompt, *ids], trained, record["row_id"], token_values=of_tokens)
