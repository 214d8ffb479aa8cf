"""Figures over all rows out of figures of each: means with their standard errors, and standard errors of what is no mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

Scores = Sequence[Mapping[str, float]]

_SEED = 1234
"""Seed of resampling: the same rows have the same standard error."""


def means(scores: Scores) -> dict[str, float]:
    """Mean of each figure, and ``FIGURE_stderr``: sample deviation / √n, for two rows and more."""
    found: dict[str, float] = {}
    for name in scores[0]:
        values = [row[name] for row in scores]
        found[name] = math.fsum(values) / len(values)
        if (error := standard_error(values)) is not None:
            found[f"{name}_stderr"] = error
    return found


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean of independent values; ``None`` of a single one."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / math.sqrt(len(values))


def resampled_errors(total: Callable[[Scores], Mapping[str, float]], scores: Scores, *, times: int) -> dict[str, float]:
    """``FIGURE_stderr`` of figures that are no means: the deviation over ``times`` draws of the rows with replacement (bootstrap)."""
    if times < 2 or len(scores) < 2:
        return {}
    import numpy as np  # listing plugins loads none

    draws = np.random.default_rng(_SEED)
    found = [total([scores[at] for at in draws.integers(len(scores), size=len(scores))]) for _ in range(times)]
    return {f"{name}_stderr": float(np.std([each[name] for each in found], ddof=1)) for name in found[0]}
