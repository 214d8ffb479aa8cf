"""Figures of the answers of an iteration, from their records alone. Torch is not imported.

Shapes: A answers, P prompts, G answers to each; NaN stands for an answer without a score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scores import figure_of

CUT = ("length", "context")
"""Ends of an answer that is not finished."""
NGRAM = 4
"""Tokens that are looked at together where an answer repeats itself."""


def answer_figures(
    records: Sequence[Mapping[str, Any]], totals_A: NDArray[np.float64], *, rewards: Iterable[str], group: int
) -> dict[str, float]:
    """Return what is told of the answers of an iteration: means of rewards and their spread, lengths, and shares of what is amiss.

    ``totals_A`` are the weighted sums, ``rewards`` the names of what was summed up. Deviations are unbiased, as TRL's are.
    """
    scores = {name: _numbers(record["rewards"][name] for record in records) for name in rewards}
    lengths = [len(record["ids"]) for record in records]
    figures = {"reward": _mean(totals_A)} | {figure_of(name): _mean(each) for name, each in scores.items()}
    figures |= {"score_std": _deviation(totals_A)}
    figures |= {figure_of(name, "score_std"): _deviation(each) for name, each in scores.items()}
    if group > 1:  # an answer alone has none to be alike
        figures["groups_alike"] = float(1 - has_spread(totals_A.reshape(-1, group)).mean())
    return figures | {
        "answer_tokens": float(np.mean(lengths)),
        "answer_tokens_most": float(max(lengths)),
        "answers_cut": float(np.mean([record["finish"] in CUT for record in records])),
        "answers_unscored": float(np.isnan(totals_A).mean()),
        "answer_repetition": float(np.mean([repetition(record["ids"]) for record in records])),
    }


def has_spread(totals_PG: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each prompt whether its answers differ in what they score, (P,); without a score none do."""
    known_PG = ~np.isnan(totals_PG)
    highest_P = np.where(known_PG, totals_PG, -np.inf).max(1)
    lowest_P = np.where(known_PG, totals_PG, np.inf).min(1)
    return np.asarray(known_PG.any(1) & (highest_P > lowest_P))


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


def _numbers(scores: Iterable[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if score is None else score for score in scores], dtype=np.float64)


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
