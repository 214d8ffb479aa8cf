"""Common beginnings of rows, so that a model reads each of them once: the shots of a subject, the question before its choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Ids = Sequence[int]

LEAST = 16
"""Tokens that a beginning must have to be read apart: below, one more forward costs more than it saves."""


@dataclass(frozen=True)
class Prefix:
    """The tokens from ``start`` to ``end`` of some rows, which are the same. ``rows`` go on alone, ``longer`` have more in common."""

    start: int
    end: int
    rows: list[int] = field(default_factory=list)
    longer: list[Prefix] = field(default_factory=list)

    @property
    def all_rows(self) -> list[int]:
        """Every row that begins with it."""
        return [*self.rows, *(row for each in self.longer for row in each.all_rows)]


def find_prefixes(rows: Sequence[Ids], limits: Sequence[int]) -> Prefix:
    """Return the tree of common beginnings of sorted rows, whose root is empty.

    No beginning goes beyond ``limits`` (tokens, one for each row): something is asked about the place there.
    """
    common = [_common_length(a, b, min(x, y)) for a, b, x, y in zip(rows, rows[1:], limits, limits[1:], strict=False)]
    return _prefix(0, 0, range(len(rows)), common, limits)


def _common_length(a: Ids, b: Ids, most: int) -> int:
    """Tokens that both begin with, at most ``most``."""
    low, high = 0, most
    while low < high:  # rows are compared in halves: slices are compared fast, tokens one by one are not
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _prefix(start: int, end: int, rows: range, common: Sequence[int], limits: Sequence[int]) -> Prefix:
    found = Prefix(start, end)
    first = rows.start
    for row in rows:
        if row + 1 < rows.stop and common[row] >= end + LEAST:
            continue
        if row == first:
            found.rows.append(row)
        else:
            shared = min(*common[first:row], min(limits[each] for each in range(first, row + 1)))
            found.longer.append(_prefix(end, shared, range(first, row + 1), common, limits))
        first = row + 1
    return found
