"""Conditions of alarms over the figures of iterations, in their order: pure functions of a state, which is JSON, and of what is new.

Each gives its next state, and numbers for a sentence once it holds. Where a figure is not there, nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

State = dict[str, Any]
Figures = Mapping[str, float]
Found = Mapping[str, float]
"""Numbers of a sentence; empty while a condition does not hold."""
STANDARD_ERRORS = 5.0
"""Standard errors by which two means have to differ: the best of many windows is high by chance, by three of them and more."""


class Condition(Protocol):
    """Something that is amiss once it has been so for a while, by what ``figure`` says."""

    @property
    def figure(self) -> str: ...

    def look(self, state: State, figures: Figures) -> tuple[State, Found]:
        """Take in the figures of the next iteration."""
        ...


@dataclass(frozen=True)
class Above:
    """``figure`` is above ``bound`` in each of so many iterations in a row."""

    figure: str
    bound: float
    iterations: int

    def look(self, state: State, figures: Figures) -> tuple[State, Found]:
        """See ``Condition``. ``value`` is the figure now."""
        value = figures.get(self.figure)
        if value is None:
            return state, {}
        held = state.get("held", 0) + 1 if value > self.bound else 0
        return {"held": held}, {"value": value} if held >= self.iterations else {}


@dataclass(frozen=True)
class Change:
    """``figure`` is more than ``factor`` times what it was at first (less, for a factor below 1) in each of so many iterations in a row.

    At first is the mean of as many iterations.
    """

    figure: str
    factor: float
    iterations: int

    def look(self, state: State, figures: Figures) -> tuple[State, Found]:
        """See ``Condition``. ``value`` is the figure now, ``first`` that of the start."""
        value = figures.get(self.figure)
        if value is None:
            return state, {}
        seen, total, held = state.get("seen", 0), state.get("total", 0.0), state.get("held", 0)
        if seen < self.iterations:
            return {"seen": seen + 1, "total": total + value, "held": 0}, {}
        first = total / seen
        beyond = value > self.factor * first if self.factor > 1 else value < self.factor * first
        held = held + 1 if first > 0 and beyond else 0
        found = {"value": value, "first": first} if held >= self.iterations else {}
        return {"seen": seen, "total": total, "held": held}, found


@dataclass(frozen=True)
class Divergence:
    """``rising`` has risen since ``figure`` was at its best, and ``figure`` has fallen: means over windows of so many values.

    Both must differ by ``STANDARD_ERRORS`` of such a mean. The variance of a value is half the mean square of the difference of
    neighbours (J. von Neumann, "Distribution of the ratio of the mean square successive difference to the variance", 1941), which a
    trend hardly changes.
    """

    figure: str
    rising: str
    window: int

    def look(self, state: State, figures: Figures) -> tuple[State, Found]:
        """See ``Condition``. ``best`` and ``value`` are of the figure, ``before`` and ``now`` of what rises."""
        pair = [figures.get(self.figure), figures.get(self.rising)]
        if None in pair:
            return state, {}
        last, squares = state.get("last", []), state.get("squares", [0.0, 0.0])
        if last:
            squares = [sum_ + (new - old) ** 2 for sum_, new, old in zip(squares, pair, last[-1], strict=True)]
        pairs = state.get("pairs", 0) + bool(last)
        last = [*last, pair][-self.window :]
        best = state.get("best")
        state = {"last": last, "squares": squares, "pairs": pairs, "best": best}
        if len(last) < self.window:
            return state, {}
        value, now = (sum(column) / self.window for column in zip(*last, strict=True))
        if best is None or value > best[0]:
            return state | {"best": [value, now]}, {}
        errors = [STANDARD_ERRORS * math.sqrt(sum_ / max(1, pairs) / self.window) for sum_ in squares]
        holds = best[0] - value > errors[0] and now - best[1] > errors[1]
        return state, {"best": best[0], "value": value, "before": best[1], "now": now} if holds else {}
