"""When a run should end early: a signal, or the clock. It then saves, and is resumed later."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from mt_core.errors import StopNow

# Windows has no SIGUSR1
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""Signals that ask a run to save and stop, as far as this system has them."""


@contextmanager
def signals_taken(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Pass signals that ask to stop to ``handler`` inside this block; outside the main thread, where Python forbids it, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class Stopper:
    """Collects the wish to stop. The first signal is a wish; a second one ends the process as if nobody listened."""

    def __init__(self, max_minutes: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = None if max_minutes is None else clock() + 60 * max_minutes
        self._minutes = max_minutes
        self._signal = ""
        self.preparing = True

    @property
    def reason(self) -> str:
        """``SIGTERM``, ``train.max_minutes=30`` or nothing."""
        if self._signal:
            return self._signal
        late = self._ends is not None and self._clock() >= self._ends
        return f"train.max_minutes={self._minutes:g}" if late else ""

    def should_stop(self) -> bool:
        """Return whether this process should stop."""
        return bool(self.reason)

    def listen(self) -> AbstractContextManager[None]:
        """Take the signals, and give them back. Outside the main thread only the clock counts."""
        return signals_taken(self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._signal = signal.Signals(number).name
        if self.preparing:
            raise StopNow
        # Not through the logger: the signal may have come in the middle of one of its writes.
        if os.environ.get("RANK", "0") == "0":
            os.write(2, f"{self._signal}: saving after this step; a second one stops at once\n".encode())
