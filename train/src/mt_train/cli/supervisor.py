"""``mt-train --restart N``: starts a run again that failed, from its last checkpoint, on the devices that are left."""

from __future__ import annotations

import platform
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from mt_core.errors import StoppedError, UsageError, WorkerError
from mt_core.tracking.appender import Appender
from mt_core.tracking.logs import notice
from mt_train.assemble.stopping import signals_taken
from mt_train.checkpoint.store import FOLDER, LATEST
from mt_train.config.digits import parse_whole_number

FAILED = 1
"""Exit code of a run that may go better another time. A wrong command (2), a signal (75, 130) and weights that cannot be trusted (65)
are for a person."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0
"""Seconds before the first restart, twice as many before each further one that came without a checkpoint in between; and at most."""
MOST_RESTARTS = 10_000
LOG = "supervisor.log"


@dataclass(frozen=True)
class Attempt:
    """Request of a supervisor: a run on so many ranks, which goes on from the run's own checkpoint where it has ``saved`` one since the
    command began."""

    ranks: int
    saved: bool


@dataclass(frozen=True, kw_only=True)
class Supervisor:
    """Starts a run up to ``restarts`` times more.

    ``start`` runs an attempt and returns its exit code and the reasons that were told; ``available`` counts the devices of this
    machine that are left, and ``works`` tells whether a number of ranks divides the run's rows. After a signal, which ``asked`` tells
    of an attempt, nothing starts again, however that attempt ended.
    """

    restarts: int
    output: Path
    start: Callable[[Attempt], tuple[int, list[str]]]
    available: Callable[[], int]
    works: Callable[[int], bool]
    asked: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    _lines: list[str] = field(default_factory=list)

    def run(self) -> int:
        """Run until the run ends well, or as one that no restart helps; return its exit code.

        Raises ``WorkerError`` without devices, ``StoppedError`` on a signal between two attempts.
        """
        with signals_taken(self._stop):
            return self._attempt_all()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        then = f"go on with: mt-train --resume {self.output}" if self._checkpoint() else "start the same command again"
        raise StoppedError(f"--restart: stopped by {signal.Signals(number).name} while no process was running; {then}")

    def _attempt_all(self) -> int:
        before = first = self._checkpoint()
        wait, ranks = FIRST_WAIT, self._ranks(None)
        for number in range(self.restarts + 1):
            began = time.monotonic()
            code, reasons = self.start(Attempt(ranks, saved=self._checkpoint() != first))
            took = f"{ranks} process{'es' * (ranks > 1)} ended with code {code} after {time.monotonic() - began:.0f} s"
            why = f": {'; '.join(reasons)}" if reasons else ""
            if code != FAILED or number == self.restarts or self.asked():
                self._note(f"attempt {number + 1}: {took}{why}", tell=bool(code and number))
                return code
            now = self._checkpoint()
            wait, before = (FIRST_WAIT if now != before else wait), now
            place = f"from {now[0]}" if now else "from the beginning"
            self._note(
                f"attempt {number + 1}: {took}{why}; starts again {place} in {wait:g} s ({number + 1} of {self.restarts})"
            )
            self.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
            ranks = self._ranks(ranks)
        raise AssertionError("the last attempt returns")

    def _ranks(self, before: int | None) -> int:
        """Return the ranks of the next attempt: the most, of the devices that are left, that divide the rows of a step."""
        left = self.available()
        if left < 1:
            raise WorkerError(
                f"--restart: no device is left on {platform.node()}, so the run cannot go on there; repair it, or give the same"
                " command with --resume auto on another machine"
            )
        if before is None:
            return left  # a layout that does not work is the run's own error
        ranks = next((count for count in range(left, 0, -1) if self.works(count)), 0)
        if not ranks:
            raise UsageError(
                f"--restart: no number of processes up to the {left} that are left divides the rows of a step with this layout; set"
                " --train.micro-batch-size lower"
            )
        if ranks != before:
            idle = f", the nearest of the {left} left that divides the rows of a step" if ranks != left else ""
            self._note(f"goes on with {ranks} process{'es' * (ranks > 1)} instead of {before}{idle}")
        return ranks

    def _checkpoint(self) -> tuple[str, int] | None:
        """Return the checkpoint that ``latest`` names, and when that was written."""
        path = self.output / FOLDER / LATEST
        try:
            return path.read_text(encoding="utf-8").strip(), path.stat().st_mtime_ns
        except (OSError, UnicodeDecodeError):
            return None

    def _note(self, text: str, *, tell: bool = True) -> None:
        """Say something, and write it into the supervisor's own log once the run has made its folder."""
        if tell:
            notice(f"notice: --restart: {text}")
        self._lines.append(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")
        if (self.output / "logs").is_dir():
            log = Appender(self.output / "logs" / LOG)
            log.append("".join(self._lines).encode())
            log.close()
            self._lines.clear()


def restart_count(text: str) -> int:
    """The number of ``--restart``. Raises ``UsageError`` with what it takes."""
    count = parse_whole_number(text)
    if not count or count > MOST_RESTARTS:
        raise UsageError(f"--restart takes a number from 1 to {MOST_RESTARTS:,}, got {text!r}")
    return count
