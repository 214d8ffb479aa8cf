"""The lines that show how a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mt_core.errors import StopNow, describe_error
from mt_core.protocols import StepRecord, TaskPrint
from mt_core.tracking.logs import notice
from mt_train.tracking.logs import show
from mt_train.tracking.progress_bar import ProgressBar


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
        name: str = "",
        say: Callable[[str], None] = show,
        clock: Callable[[], float] = time.monotonic,
        bar: ProgressBar | None = None,
    ) -> None:
        self._bar = bar
        self._print, self._name = task_print, name
        self._total = total_steps
        self._every = every_steps
        self._first = first_step
        self._say = say
        self._clock = clock
        self._began = clock()
        self._pending: list[StepRecord] = []

    def append(self, record: StepRecord) -> None:
        """Collect; print on every ``every_steps``-th step, the first, the last and each evaluation."""
        self._pending.append(record)
        self._show(record)
        if self._bar is not None:
            self._bar.advance(record.step, self._time_left(record.step))

    def close(self) -> None:
        """Leave the lines alone on the terminal."""
        if self._bar is not None:
            self._bar.close()

    def _show(self, record: StepRecord) -> None:
        first = record.step == self._first + 1
        if not (first or record.evaluation or record.step % self._every == 0 or record.step == self._total):
            return
        width = len(str(self._total))
        self._say(
            f"step {record.step:>{width}}/{self._total} | {self.line(self._pending)} | {self._time_left(record.step)} left"
        )
        self._pending = []

    def _time_left(self, step: int) -> str:
        done = max(1, step - self._first)  # 0: a resumed run first repeats an evaluation
        return duration((self._clock() - self._began) / done * (self._total - step))

    def line(self, records: Sequence[StepRecord]) -> str:
        """The task's own words for these records. A printer that fails never stops a run: from then on there is the loss alone."""
        try:
            return self._print(records)
        except BaseException as error:
            if isinstance(error, StopNow):
                raise
            self._print = _loss
            notice(
                f"warning: task print {self._name} failed at step {records[-1].step}: {describe_error(error)};"
                " the run goes on, and shows the loss alone"
            )
            return _loss(records)


def _loss(records: Sequence[StepRecord]) -> str:
    return f"loss {records[-1].loss:.4f}"
