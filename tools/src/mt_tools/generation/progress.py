"""Progress through a file of prompts, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Self, TextIO

from mt_core.config.terminal import drawing_stream
from mt_train.tracking.console import duration

EVERY_SECONDS = 10.0


class Progress(AbstractContextManager["Progress"]):
    """Counts prompts and new tokens."""

    def __init__(
        self, total: int, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._clock = clock
        self._began = self._said = clock()
        self._done = self._tokens = 0
        self._stack = ExitStack()
        self._bar: Callable[[int, str], None] | None = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._bar = self._rich_bar()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def advance(self, prompts: int, tokens: int) -> None:
        """Count so many more prompts are done, with so many new tokens."""
        self._done, self._tokens = self._done + prompts, self._tokens + tokens
        now = self._clock()
        seconds = max(now - self._began, 1e-9)
        speed = f"{self._tokens / seconds:.0f} tokens/s"
        if self._bar is not None:
            self._bar(prompts, speed)
        elif now - self._said >= EVERY_SECONDS or self._done == self._total:
            self._said = now
            left = duration(seconds / self._done * (self._total - self._done))
            print(f"prompts {self._done}/{self._total} | {speed} | {left} left", file=self._stream, flush=True)

    def _rich_bar(self) -> Callable[[int, str], None]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
        console = Console(file=drawing_stream(self._stream))
        bar = self._stack.enter_context(RichProgress(*columns, TimeRemainingColumn(), console=console))
        task = bar.add_task("prompts", total=self._total, speed="")
        return lambda prompts, speed: bar.update(task, advance=prompts, speed=speed)
