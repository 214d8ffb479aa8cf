"""Where the time of a start goes: from a thousand GPUs on, restarts cost more than saves."""

from __future__ import annotations

import time

from mt_core.tracking.logs import for_the_file


class StartTimes:
    """Seconds of the parts of a start, in their order, from when this is made. Imports of the command itself come before."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        """Let what has passed since the last part be this one's."""
        now = time.perf_counter()
        self._seconds[part], self._last = now - self._last, now

    def record(self) -> None:
        """Write all of them into this rank's log, and those of rank 0 into the run's events."""
        seconds = {part: round(each, 3) for part, each in self._seconds.items()}
        parts = ", ".join(f"{part} {each:.1f}" for part, each in seconds.items())
        for_the_file(
            f"ready after {sum(self._seconds.values()):.1f} s: {parts}", event={"kind": "start", "seconds": seconds}
        )
