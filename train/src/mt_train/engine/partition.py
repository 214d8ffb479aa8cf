"""Partition of layers into pipeline stages: a pure function of their costs.

Shapes: L layers, P stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate


def partition(costs_L: Sequence[float], stages: int) -> list[int]:
    """Bounds [0, …, L] of the best ``stages`` runs of layers, none empty: stage ``s`` has layers ``bounds[s]:bounds[s + 1]``.

    Best has the cheapest dearest stage, which is what the others wait for; among those, the smallest sum of squares, so
    that what is left is even too. The first in order wins a tie.
    """
    assert 0 < stages <= len(costs_L), f"{len(costs_L)} layers cannot fill {stages} stages: the plan refuses that"
    dearest, _ = _search(costs_L, stages, max)
    _, bounds = _search(costs_L, stages, lambda total, cost: total + cost**2 if cost <= dearest else math.inf)
    return bounds


def _search(costs_L: Sequence[float], stages: int, join: Callable[[float, float], float]) -> tuple[float, list[int]]:
    """The least value of ``join`` over the stages, and its bounds, by dynamic programming in O(P L²)."""
    until = [0.0, *accumulate(costs_L)]
    best: list[tuple[float, list[int]]] = [(0.0, [0])] + [(math.inf, [0])] * len(costs_L)
    for _ in range(stages):
        best = [(math.inf, [0])] + [
            min(
                ((join(best[start][0], until[end] - until[start]), [*best[start][1], end]) for start in range(end)),
                key=lambda found: found[0],
            )
            for end in range(1, len(until))
        ]
    return best[-1]
