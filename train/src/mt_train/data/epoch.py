"""The rows of one epoch, made window by window as they are reached: nothing is kept of a set that is larger than memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Group = tuple[int, ...]
"""The numbers of the samples in one row."""

Grouping = Callable[[NDArray[np.int64], int], Sequence[Group]]
"""Rows of the samples of a window, from their numbers and the place of the first one in the epoch."""


class EpochRows:
    """The global sequence of rows of one epoch."""

    def __init__(self, order: NDArray[np.int64], grouping: Grouping, window: int) -> None:
        self._order, self._grouping, self._window = order, grouping, window
        self._begins = [0]  # row with which each window begins, as far as is known
        self._latest: tuple[int, Sequence[Group]] = (-1, ())

    def __len__(self) -> int:
        while len(self._begins) <= self._windows:
            self._group(len(self._begins) - 1)
        return self._begins[-1]

    def cut(self, start: int, count: int) -> list[Group]:
        """Up to ``count`` rows from ``start`` on; fewer at the end of the epoch."""
        rows: list[Group] = []
        while len(rows) < count and self.has(start):
            number = bisect_right(self._begins, start) - 1
            first = start - self._begins[number]
            rows.extend(self._group(number)[first : first + count - len(rows)])
            start = self._begins[number + 1]
        return rows

    def share_before(self, row: int) -> float:
        """Return the share of the epoch's samples that come before ``row``, which there has to be; exact where windows begin."""
        number = bisect_right(self._begins, row) - 1
        first = number * self._window
        size = min(self._window, len(self._order) - first)
        inside = size * (row - self._begins[number]) / (self._begins[number + 1] - self._begins[number])
        return (first + inside) / len(self._order)

    @property
    def _windows(self) -> int:
        return -(-len(self._order) // self._window)

    def has(self, row: int) -> bool:
        """Return whether there is a row of this number; goes on until the window that has the row is known."""
        while row >= self._begins[-1] and len(self._begins) <= self._windows:
            self._group(len(self._begins) - 1)
        return row < self._begins[-1]

    def _group(self, number: int) -> Sequence[Group]:
        if self._latest[0] != number:
            start = number * self._window
            self._latest = number, self._grouping(self._order[start : start + self._window], start)
        if number == len(self._begins) - 1:
            self._begins.append(self._begins[-1] + len(self._latest[1]))
        return self._latest[1]
