"""``checkpoint.every_steps: auto``: saves as far apart as what they cost and how often machines fail ask for.

The work that a failure takes is half an interval on average, so time is lost least at √(2·C·M) seconds between saves of C seconds, with a
failure every M seconds (Young 1974, https://doi.org/10.1145/361147.361115). The loss is flat around that: with M wrong by a factor of
six it is 1.4 times the least, so M is no option.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import median

from mt_train.config.sections import CheckpointConfig
from mt_train.loop import Every, Progress

HOURS_PER_RANK = 50_000.0
"""Mean time between failures of one GPU, in hours: 419 in 54 days on 16,384 (https://arxiv.org/abs/2407.21783, section 3.3.4)."""
MOST_SECONDS = 7_200.0
"""Longest interval, whatever the machines: programs and people stop runs, too."""
LARGEST_SHARE = 0.1
"""Largest share of the time that saves may take."""
FIRST_SAVE = 10
"""Optimizer steps of this process before the save that is measured, so that the time of a step is known."""


def failure_seconds(ranks: int) -> float:
    """Return the mean time between failures of a run (seconds)."""
    return HOURS_PER_RANK * 3600 / ranks


def best_interval(stall_seconds: float, ranks: int) -> float:
    """Return the seconds between saves that each hold the run up for ``stall_seconds``, within the bounds above."""
    best = min(math.sqrt(2 * stall_seconds * failure_seconds(ranks)), MOST_SECONDS)
    return max(best, stall_seconds / LARGEST_SHARE)


def expected_loss(stall_seconds: float, interval_seconds: float, restart_seconds: float, ranks: int) -> float:
    """Return the share of the time that saves, repeated work and restarts take."""
    return stall_seconds / interval_seconds + (interval_seconds / 2 + restart_seconds) / failure_seconds(ranks)


class MeasuredInterval:
    """The interval of ``auto``: a first save after ``FIRST_SAVE`` steps is measured, and the next come so many steps after the last one.

    ``slowest`` gives all ranks the largest of their numbers, so that they save together. A resumed run measures again: it may be
    on other machines.
    """

    def __init__(
        self,
        ranks: int,
        slowest: Callable[[float], float],
        say: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ranks, self._slowest, self._say, self._clock = ranks, slowest, say, clock
        self._last_save: int | None = None
        self._last_step: float | None = None
        self._seconds: list[float] = []
        self.steps: int | None = None

    def begin(self, step: int) -> None:
        """Count from this step on."""
        self._last_save, self._last_step = step, self._clock()

    def note_step(self) -> None:
        """Note how long a step took, until the interval is known."""
        now = self._clock()
        if self.steps is None and self._last_step is not None:
            self._seconds.append(now - self._last_step)
        self._last_step = now

    def is_due(self, progress: Progress) -> bool:
        """Return whether to save after the last step of ``progress``."""
        assert self._last_save is not None, "the run has begun"
        return progress.step - self._last_save >= (self.steps or FIRST_SAVE)

    def note_save(self, step: int, stall_seconds: float) -> None:
        """Note that the run was held up for so long by the save of ``step``. Collective, the first time."""
        self._last_save = step
        if self.steps is None and len(self._seconds) >= FIRST_SAVE:
            self._settle(self._slowest(stall_seconds), self._slowest(median(self._seconds)))
        self._last_step = self._clock()

    def _settle(self, stall: float, step_seconds: float) -> None:
        interval = best_interval(stall, self._ranks)
        self.steps = max(1, round(interval / max(step_seconds, 1e-6)))
        self._say(
            f"notice: checkpoint.every_steps=auto: a save every {self.steps:,} steps, {describe_seconds(interval)} apart: a save holds"
            f" the run up for {describe_seconds(stall)}, a step takes {describe_seconds(step_seconds)}, and {describe_ranks(self._ranks)}"
        )


class FixedInterval(Every):
    """The interval that a config gives."""

    def begin(self, step: int) -> None:
        """Count from the run's first step, whatever this process begins with."""

    def note_step(self) -> None:
        """Measure nothing."""

    def note_save(self, step: int, stall_seconds: float) -> None:
        """Measure nothing."""


def interval_of(
    config: CheckpointConfig, ranks: int, slowest: Callable[[float], float], say: Callable[[str], object]
) -> FixedInterval | MeasuredInterval:
    """Return when a run saves. ``slowest`` and ``say`` are those of a ``MeasuredInterval``."""
    if config.every_steps == "auto":
        return MeasuredInterval(ranks, slowest, say)
    return FixedInterval(config.every_steps, config.every_epochs)


def describe_ranks(ranks: int) -> str:
    """Describe how often a run of so many ranks is expected to fail."""
    return (
        f"{ranks:,} rank{'s' * (ranks > 1)} at {HOURS_PER_RANK:,.0f} h each fail every"
        f" {describe_seconds(failure_seconds(ranks))}"
    )


def describe_auto(ranks: int) -> str:
    """Describe for a plan, where no save has been measured, when a run saves."""
    examples = ", ".join(
        f"{describe_seconds(best_interval(stall, ranks))} apart where one takes {stall:g} s" for stall in (5, 60)
    )
    return (
        f"the first after step {FIRST_SAVE} is measured; then {examples}, at most {describe_seconds(MOST_SECONDS)}"
        f" ({describe_ranks(ranks)})"
    )


def describe_seconds(seconds: float) -> str:
    """Return a time as people say it: ``2.5 s``, ``22 min``, ``49 h``."""
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 2 * 3600 else f"{seconds / 3600:,.0f} h"
