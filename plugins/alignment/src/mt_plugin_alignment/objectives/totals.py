"""Sums of the rewards of answers. Torch is not imported.

A reward may be of some prompts only: one for sums, one for code. It scores no answer to the others, and counts nothing there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..reward_functions.base import Reward

Records = Sequence[Mapping[str, Any]]
Weights = Mapping[str, float]


def weight_of(reward: Reward) -> float:
    """Return what a reward counts in the sum; 1 where it does not say."""
    return float(getattr(reward, "weight", 1.0))


def scores_of(records: Records, name: str) -> NDArray[np.float64]:
    """Return what a reward says of each answer; NaN where it says nothing."""
    scores = [record["rewards"][name] for record in records]
    return np.array([math.nan if score is None else score for score in scores], dtype=np.float64)


def total_of(scores: Mapping[str, float | None], weights: Weights) -> float:
    """Return the weighted sum of an answer's scores; NaN where one that counts is missing."""
    counted = [(weight, scores[name]) for name, weight in weights.items() if weight]
    return (
        math.nan
        if any(score is None for _, score in counted)
        else sum(weight * (score or 0.0) for weight, score in counted)
    )


def weights_by_group(records: Records, weights: Weights) -> dict[int, Weights]:
    """Return for each group the weights of the rewards that are of its prompt: those that score an answer to it.

    Left out, a reward shifts all sums of its group alike. Where it scores some answers only, or where there is one answer to a prompt, the
    sum of the others says nothing of an answer that it could not score; where none scores any, all remain.
    """
    answers: dict[int, list[Mapping[str, float | None]]] = defaultdict(list)
    for record in records:
        answers[record["group"]].append(record["rewards"])
    found: dict[int, Weights] = {}
    for group, scored in answers.items():
        own = {name: weight for name, weight in weights.items() if any(each[name] is not None for each in scored)}
        found[group] = own if len(scored) > 1 and any(own.values()) else weights
    return found


def totals_of(records: Records, weights: Weights) -> NDArray[np.float64]:
    """Return the weighted sum of each answer's scores, of the rewards that are of its prompt; NaN where one of them is missing."""
    by_group = weights_by_group(records, weights)
    return np.array([total_of(record["rewards"], by_group[record["group"]]) for record in records], dtype=np.float64)
