"""Scores of answers by the rewards of a run: each checked, and a fault named with the reward it is of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mt_core import ComponentError, MtError, first_line

if TYPE_CHECKING:
    from .reward_functions.base import Answer, Reward


def figure_of(name: str, prefix: str = "reward") -> str:
    """Return the name that a figure of this reward has in records."""
    return f"{prefix}_{name.replace('-', '_')}"


def score_answers(rewards: Mapping[str, Reward], answers: Sequence[Answer]) -> dict[str, list[float | None]]:
    """Return the scores of each reward, by name; ``None`` for an answer that it cannot score.

    Raises ``ComponentError`` for a reward that raises, gives another number of scores than there are answers, or a score that is no
    finite number: an infinite one would be the advantage of a whole group.
    """
    return {name: _scores(name, reward, answers) for name, reward in rewards.items()}


def _scores(name: str, reward: Reward, answers: Sequence[Answer]) -> list[float | None]:
    try:
        found = list(reward.score(answers))
    except MtError:
        raise
    except Exception as error:  # a reward's code may raise anything; whose it is has to be said
        raise ComponentError(
            f"reward {name} failed: {type(error).__name__}: {first_line(error)} (--debug shows where)"
        ) from error
    if len(found) != len(answers):
        raise ComponentError(
            f"reward {name} gives {len(found)} scores for {len(answers)} answers; give one for each, None where there is none"
        )
    return [_number(name, score, answer) for score, answer in zip(found, answers, strict=True)]


def _number(name: str, score: float | None, answer: Answer) -> float | None:
    if score is None:
        return None
    try:
        number = float(score)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ComponentError(
            f"reward {name} gives {score!r} for an answer to {answer.row['id']}; a score is a finite number, or None where there is none."
            f" The answer: {answer.text[:80]!r}"
        )
    return number
