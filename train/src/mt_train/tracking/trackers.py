"""Trackers of plugins: what one of them raises is one warning, and the run goes on without it."""

from __future__ import annotations

from collections.abc import Callable

from mt_core.config.secrets import redact
from mt_core.errors import MtError, StopNow, describe_error
from mt_core.events import Tracker
from mt_core.protocols import StepRecord
from mt_core.tracking.logs import notice


class GuardedTracker:
    """A tracker that never stops a run: after its first failure it is left out.

    An ``MtError`` of ``make`` is raised: before the first step a missing package or a wrong option can still be put right.
    """

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self._name = name
        self._tracker: Tracker | None = None
        self._call_safely("build", lambda: setattr(self, "_tracker", make()), raised=(MtError,))

    def log(self, record: StepRecord) -> None:
        """Hand on the figures of one step."""
        if (tracker := self._tracker) is not None:
            self._call_safely("log", lambda: tracker.log(record))

    def close(self, *, failed: bool) -> None:
        """The run has ended."""
        if (tracker := self._tracker) is not None:
            self._call_safely("close", lambda: tracker.close(failed=failed))
        self._tracker = None

    def _call_safely(
        self, what: str, action: Callable[[], object], *, raised: tuple[type[Exception], ...] = ()
    ) -> None:
        try:
            action()
        except StopNow:
            raise
        except raised:
            raise
        except BaseException as error:  # noqa: BLE001 - a tracker's code and its network may raise anything, sys.exit included
            self._tracker = None
            said = redact(describe_error(error))
            notice(
                f"warning: tracker {self._name} failed ({what}): {said}; the run goes on without it, and metrics.jsonl has"
                " all figures"
            )
