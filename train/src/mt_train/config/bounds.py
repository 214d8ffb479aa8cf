"""Bounds of numbers that several sections of a run have."""

from __future__ import annotations

from typing import Any

MOST_TOKENS, MOST_ROWS = 1_073_741_824, 10_000_000
"""Most tokens of one row, and most rows at a time or in one optimizer step: more is a slip, refused before anything takes memory for it."""

MOST_STEPS = 99_999_999
"""Most optimizer steps of a run: checkpoints are named and sorted by eight digits."""


def count_or_auto(value: Any, most: int | None = None) -> Any:
    """Return a count as it is, and ``auto``. Raises one ``ValueError`` for anything else: a union of types would give several."""
    if value == "auto":
        return value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        allowed = "of 1 or more" if most is None else f"from 1 to {most:,}"
        raise ValueError(f"should be a whole number {allowed}, or auto; got {value!r}")
    return value
