"""Several samples in one row: best fit, longest first, in windows of the global order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

WINDOW = 4096
"""Samples that are packed together. Larger windows fill rows better; smaller ones keep the order closer to the shuffle."""


def pack(
    order: Sequence[int], lengths: Sequence[int], capacity: int, *, seed: int, epoch: int
) -> list[tuple[int, ...]]:
    """Rows of sample numbers whose lengths add up to ``capacity`` tokens at most.

    The same for any number of ranks and workers. Rows are shuffled within a window, since packing sorts by length.
    """
    rows: list[tuple[int, ...]] = []
    for start in range(0, len(order), WINDOW):
        packed = best_fit(order[start : start + WINDOW], lengths, capacity)
        shuffled = np.random.Generator(np.random.PCG64([seed, epoch, start])).permutation(len(packed))
        rows.extend(packed[index] for index in shuffled)
    return rows


def best_fit(samples: Sequence[int], lengths: Sequence[int], capacity: int) -> list[tuple[int, ...]]:
    """Best-fit decreasing (D. S. Johnson, 1973): each sample goes where it leaves the least room."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for sample in sorted(samples, key=lambda number: -lengths[number]):
        length = lengths[sample]
        place = bisect_left(room, (length, -1))
        if place == len(room):
            rows.append([sample])
            left, row = capacity - length, len(rows) - 1
        else:
            left, row = room.pop(place)
            rows[row].append(sample)
            left -= length
        if left > 1:
            insort(room, (left, row))
    return [tuple(row) for row in rows]
