"""Figures of the answers of an iteration, from their records alone. Torch is not imported.

Shapes: A answers; NaN stands for an answer without a score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..scores import figure_of
from .answers import CUT
from .totals import scores_of, totals_of

NGRAM = 4
"""Tokens that are looked at together where an answer repeats itself."""


def reward_figures(records: Sequence[Mapping[str, Any]], weights: Mapping[str, float]) -> dict[str, float]:
    """Return mean and spread of the weighted sum of rewards, and of each reward that scores any. Deviations are unbiased, as TRL's are.

    A reward may be of some rows only, as one that is watched, and 0 in an iteration without them would be a fall.
    """
    totals_A = totals_of(records, weights)
    scores = {name: each for name in weights if len(_known(each := scores_of(records, name)))}
    figures = {"reward": _mean(totals_A)} | {figure_of(name): _mean(each) for name, each in scores.items()}
    spread = {figure_of(name, "score_std"): _deviation(each) for name, each in scores.items()}
    return figures | {"score_std": _deviation(totals_A)} | spread


def answer_figures(records: Sequence[Mapping[str, Any]], weights: Mapping[str, float]) -> dict[str, float]:
    """Return how long answers are, and shares of what is amiss with them."""
    lengths = [len(record["ids"]) for record in records]
    totals_A = totals_of(records, weights)
    return {
        "answer_tokens": float(np.mean(lengths)),
        "answer_tokens_most": float(max(lengths)),
        "answers_cut": float(np.mean([record["finish"] in CUT for record in records])),
        "answers_unscored": float(np.isnan(totals_A).mean()),
        "answer_repetition": float(np.mean([repetition(record["ids"]) for record in records])),
    } | _call_figures(records)


def _call_figures(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return how often an answer calls tools, and the share of calls that fail; nothing where there are no tools."""
    if not all("calls" in record for record in records):
        return {}
    calls = sum(record["calls"] for record in records)
    failed = sum(record["failed_calls"] for record in records)
    return {"tool_calls": calls / len(records), "tool_calls_failed": failed / max(calls, 1)}


def repetition(ids: Sequence[int]) -> float:
    """Return the share of an answer's 4-grams of tokens that are in it already: seq-rep-4 of https://arxiv.org/abs/1908.04319, section 5.

    It is 1 - (different 4-grams) / (all 4-grams); 0 for an answer that is too short to have two.
    """
    if len(ids) <= NGRAM:
        return 0.0
    numbers = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)[1]
    for length in (1, 2):  # pairs get numbers of their own, then pairs of these: exact, whatever the vocabulary
        pairs = numbers[:-length] * (int(numbers.max()) + 1) + numbers[length:]
        different, numbers = np.unique(pairs, return_inverse=True)
    return float(1 - len(different) / len(numbers))


def _mean(values_A: NDArray[np.float64]) -> float:
    """The mean of what is there; 0 for nothing."""
    known = _known(values_A)
    return float(known.mean()) if len(known) else 0.0


def _deviation(values_A: NDArray[np.float64]) -> float:
    """The standard deviation of what is there; 0 for fewer than two."""
    known = _known(values_A)
    return float(known.std(ddof=1)) if len(known) > 1 else 0.0


def _known(values_A: NDArray[np.float64]) -> NDArray[np.float64]:
    return values_A[~np.isnan(values_A)]
