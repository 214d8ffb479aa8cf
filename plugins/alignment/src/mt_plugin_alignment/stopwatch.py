"""Seconds of an iteration by what they were spent on. They are no part of its records, which are the same in every run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up seconds by name, until it is cleared."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}

    def clear(self) -> None:
        """Begin anew."""
        self.seconds = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add what passes inside to the seconds of this name, also where it raises."""
        began = self._clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - began
