"""The rows of one epoch, made window by window as they are reached: nothing is kept of a set that is larger than memory."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mt_train.config.bounds import MOST_STEPS
from mt_train.tracking.logs import first_notice

PATIENCE = 10.0
"""Seconds that the steps of packed epochs are counted without a word."""

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


def count_packed_steps(rows: Callable[[int], EpochRows], epochs: int, rows_a_step: int, *, least_rows: int) -> int:
    """Return the optimizer steps of so many epochs, each of which packs the samples in another order.

    It takes as long as packing all of them, which is said after a while. Each epoch has ``least_rows`` or more: where these alone make
    more steps than a run may have, they are returned, and nothing is packed.
    """
    least = -(-least_rows // rows_a_step)
    if epochs * least > MOST_STEPS:
        return epochs * least
    steps, began, said = 0, time.monotonic(), False
    for epoch in range(epochs):
        steps += -(-len(rows(epoch)) // rows_a_step)
        seconds = time.monotonic() - began
        if seconds > PATIENCE and not said:
            said, left = True, (epochs - epoch - 1) * seconds / (epoch + 1)
            first_notice(
                f"notice: the steps of {epochs:,} epochs are counted by packing the rows of each; {epoch + 1:,} took {seconds:,.0f} s, so"
                f" that about {left:,.0f} s are left. --train.steps is known at once"
            )
    return steps
