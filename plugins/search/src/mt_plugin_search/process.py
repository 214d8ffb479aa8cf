"""Runs a trial as ``mt-train`` does, in a process of its own, and hands on the wish to stop."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from mt_core import StoppedError
from mt_core.files import open_regular
from mt_train.command import signals_taken

STOPPED = StoppedError.exit_code
GRACE_SECONDS = 10.0
"""How long a trial may take to end after the second signal."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Order:
    """One trial to run: its config, its run's folder, and where what it says goes."""

    config: Path
    run: Path
    log: Path
    processes: str


Runner = Callable[[Order], int]
"""Runs a trial and returns the exit code of ``mt-train``."""


class Watch:
    """Collects the wish to stop. The first signal goes on to the trial, which saves; the second is a ``KeyboardInterrupt``."""

    def __init__(self) -> None:
        self.signal = ""
        self._process: subprocess.Popen[bytes] | None = None

    def listen(self) -> AbstractContextManager[None]:
        """Take the signals, and give them back."""
        return signals_taken(self._on_signal)

    def run(self, order: Order) -> int:
        """A ``Runner``: the code of a process, which ends with this one."""
        words = [sys.executable, "-m", "mt_train.cli.train", "--config", str(order.config), "--output", str(order.run)]
        words += ["--resume", "auto", "--nproc-per-node", order.processes]
        with open(order.log, "ab", opener=open_regular) as log:
            # A group of its own: a terminal sends Ctrl-C to its whole group, and the trial would get it twice.
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=_end_with(os.getpid()),
            )
        try:
            if self.signal:  # it came before there was anybody to tell
                self._process.send_signal(signal.SIGTERM)
            code = self._process.wait()
            return STOPPED if code and self.signal else code  # however it ended: it was asked to
        finally:
            self._end(self._process)
            self._process = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number).name
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Whoever still runs was asked twice: it gets its second signal, and then no choice."""
        if process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        if process.poll() is None:
            process.kill()
            process.wait()


def _end_with(parent: int) -> Callable[[], None] | None:
    """Return what makes the new process get SIGTERM when this one is killed, so that it saves and ends. Linux only (prctl(2))."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it went before we could ask
            os.kill(os.getpid(), signal.SIGTERM)

    return ask


def last_words(log: Path, code: int) -> str:
    """Return the reason why a trial failed: its last line that begins with ``error``, else what killed it, and its last line."""
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error")]
    if errors:
        return errors[-1].removeprefix("error: ")
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"{ended}; it last said: {lines[-1] if lines else 'nothing'}"
