"""A bar below the lines of a run: on a terminal alone, and only once a step is slow."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from mt_core.config.terminal import drawing_stream
from mt_core.tracking.logs import CONSOLE

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SLOW_SECONDS = 2.0
"""A step that takes this long has no line of its own for a while; quicker runs show lines alone."""


class ProgressBar:
    """Shows which step was the last. It is drawn anew at each step, without a thread; what is printed meanwhile stands above it."""

    def __init__(
        self, stream: TextIO, *, total_steps: int, first_step: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = stream, clock
        self._total, self._first = total_steps, first_step
        self._last = clock()
        self._shown: tuple[Progress, TaskID] | None = None

    def advance(self, step: int, left: str) -> None:
        """Show that ``step`` is done, and the time that is ``left``."""
        now, before = self._clock(), self._last
        self._last = now
        if self._shown is None and now - before >= SLOW_SECONDS and step < self._total:
            self._shown = self._open()
        if self._shown is not None:
            bar, task = self._shown
            bar.update(task, completed=step, left=left, refresh=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._shown is not None:
            self._shown[0].stop()
            self._shown = None

    def _open(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("step"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]} left"))
        console = Console(file=drawing_stream(self._stream))
        bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
        task = bar.add_task("step", total=self._total, completed=self._first, left="?")
        bar.start()
        console.show_cursor(True)  # a run that is killed leaves the terminal as it was
        return bar, task


def open_progress_bar(*, total_steps: int, first_step: int = 0) -> ProgressBar | None:
    """Return a bar where a person looks at both streams and wants to see lines; ``None`` in a pipe, a file or a dumb terminal."""
    seen = sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
    if not seen or CONSOLE.level > logging.INFO:
        return None
    return ProgressBar(sys.stderr, total_steps=total_steps, first_step=first_step)
