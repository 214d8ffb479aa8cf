"""Means and their standard errors, as lm-evaluation-harness 0.4.13 computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """Return the sample deviation / √n; ``None`` for a single value."""
    if len(values) < 2:
        return None
    middle = mean(values)
    deviation = math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))
    return deviation / math.sqrt(len(values))


def pooled_error(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the standard error of the mean of all values of several groups, from the deviation within each.

    (https://en.wikipedia.org/wiki/Pooled_variance)
    """
    total = sum(map(len, groups))
    if total == len(groups):
        return None
    errors = [standard_error(group) or 0.0 for group in groups]
    squares = sum((len(group) - 1) * error**2 * len(group) for group, error in zip(groups, errors, strict=True))
    return math.sqrt(squares / (total - len(groups)) / total)


def mean_error(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the standard error of the mean of the groups' means, each counting alike; ``None`` where one has a single value."""
    errors = [standard_error(group) for group in groups]
    known = [error for error in errors if error is not None]
    return math.sqrt(sum(error**2 for error in known)) / len(errors) if len(known) == len(errors) else None
