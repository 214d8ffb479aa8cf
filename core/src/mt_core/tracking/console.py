"""What a person sees: progress on standard output, notices on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from mt_core.protocols import StepRecord, TaskPrint


def notice(text: str) -> None:
    """Something to know, on standard error."""
    print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """``48s``, ``3m10s``, ``2h05m``, ``4d03h``."""
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24:02d}h"
    if hours:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"


class ProgressLines:
    """One line every few steps: how far, the task's own words, and the time left."""

    def __init__(
        self,
        task_print: TaskPrint,
        *,
        total_steps: int,
        every_steps: int,
        first_step: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._print = task_print
        self._total = total_steps
        self._every = every_steps
        self._first = first_step
        self._stream = stream or sys.stdout
        self._clock = clock
        self._began = clock()
        self._pending: list[StepRecord] = []

    def append(self, record: StepRecord) -> None:
        """Collect; print on every ``every_steps``-th step, the first, the last and each evaluation."""
        self._pending.append(record)
        first = record.step == self._first + 1
        if not (first or record.evaluation or record.step % self._every == 0 or record.step == self._total):
            return
        done = record.step - self._first
        left = (self._clock() - self._began) / done * (self._total - record.step)
        width = len(str(self._total))
        line = f"step {record.step:>{width}}/{self._total} | {self.line(self._pending)} | {duration(left)} left"
        print(line, file=self._stream, flush=True)
        self._pending = []

    def line(self, records: Sequence[StepRecord]) -> str:
        """The task's own words for these records."""
        return self._print(records)
