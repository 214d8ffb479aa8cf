"""One figure over the steps of a run, thinned while it is read: lowest, highest and mean of groups of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_GROUPS = 1000
"""Groups at most; each keeps its lowest and its highest value, which makes about 2,000 points of a curve."""

DIGITS = 6
"""Significant digits of the values in the page."""


@dataclass(slots=True)
class Group:
    """The values of neighbouring steps. ``count`` is of finite values; without any, the group is a gap."""

    first: int
    last: int
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float | None:
        """Mean of the finite values; between the lowest and the highest also where the sum was rounded."""
        return min(max(self.total / self.count, self.low), self.high) if self.count else None

    def join(self, other: Group) -> None:
        """Take in the group that follows."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.total, self.count = self.total + other.total, self.count + other.count


class Series:
    """A series of values, kept in at most ``max_groups`` groups of neighbours.

    All groups are ``width`` steps wide: 1 until there are too many of them, and then twice as many, again and again.
    """

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        self.width = 1
        self.gaps = 0
        self.last: tuple[int, float] | None = None
        self.lowest: tuple[int, float] | None = None
        self.highest: tuple[int, float] | None = None
        self._max_groups = max_groups
        self._joins = False
        self._groups: dict[int, Group] = {}

    def add(self, step: int, value: float | None) -> None:
        """One more value; ``None``, NaN and infinity leave a gap."""
        index = (step - 1) // self.width
        group = self._groups.get(index)
        if group is None:
            group = self._groups[index] = Group(step, step)
        group.last = step
        if value is None or not math.isfinite(value):
            self.gaps += 1
        else:
            self._fill(group, step, value)
        if len(self._groups) > self._max_groups:
            self._widen()

    def _fill(self, group: Group, step: int, value: float) -> None:
        group.low, group.high = min(group.low, value), max(group.high, value)
        group.total, group.count = group.total + value, group.count + 1
        self._joins = self._joins or group.count > 1
        self.last = (step, value)
        if self.lowest is None or value < self.lowest[1]:
            self.lowest = self.last
        if self.highest is None or value > self.highest[1]:
            self.highest = self.last

    def _widen(self) -> None:
        """Join pairs of groups until there are few enough; values far apart may need more than one round."""
        while len(self._groups) > self._max_groups:
            self.width *= 2
            wider: dict[int, Group] = {}
            for index, group in sorted(self._groups.items()):
                if (half := wider.get(index // 2)) is None:
                    wider[index // 2] = group
                else:
                    half.join(group)
                    self._joins = self._joins or half.count > 1
            self._groups = wider

    @property
    def total(self) -> float:
        """Return the sum of all finite values; infinite, or NaN, where that is beyond every number."""
        totals = [group.total for group in self._groups.values()]
        rough = sum(totals)
        return math.fsum(totals) if math.isfinite(rough) else rough

    @property
    def form(self) -> tuple[int, bool]:
        """Return what the columns of ``data`` depend on; while it stays, groups before the newest step's never change."""
        return self.width, self._joins

    def groups(self, since: int | None = None) -> Iterator[Group]:
        """All groups in the order of their steps; with ``since`` the one that holds this step, and those behind it."""
        first = 0 if since is None else (since - 1) // self.width
        found = (
            self._groups.items() if since is None else ((i, group) for i, group in self._groups.items() if i >= first)
        )
        return (group for _, group in sorted(found))

    def data(self, since: int | None = None) -> dict[str, Any]:
        """Return what the page draws: columns of first steps ``x``, means ``y``, and of lowest and highest values.

        With ``since`` only groups that hold this step or later ones, and ``from``, the step where these begin.
        """
        groups = list(self.groups(since))
        columns: dict[str, Any] = {"w": self.width, "x": [group.first for group in groups]}
        columns["y"] = [round_for_json(group.mean) for group in groups]
        if since is not None:
            columns["from"] = (since - 1) // self.width * self.width + 1
        if self._joins:
            columns["last"] = [group.last for group in groups]
            columns["lo"] = [round_for_json(group.low) for group in groups]
            columns["hi"] = [round_for_json(group.high) for group in groups]
        return columns

    def corners(self, since: int | None = None) -> dict[str, Any]:
        """A series that never falls, such as tokens so far, as corners to interpolate between; ``since`` as in ``data``."""
        pairs = [
            pair
            for group in self.groups(since)
            if group.count
            for pair in dict.fromkeys(((group.first, group.low), (group.last, group.high)))
        ]
        start = {} if since is None else {"from": (since - 1) // self.width * self.width + 1}
        return start | {"x": [step for step, _ in pairs], "y": [round_for_json(value, digits=9) for _, value in pairs]}


def round_for_json(value: float | None, digits: int = DIGITS) -> float | int | None:
    """Round a number for JSON; ``None`` for infinity and NaN, which JSON lacks."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
