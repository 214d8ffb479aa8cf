"""``events.jsonl``: what a run has said, as records that a page can show."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mt_core.config.secrets import redact
from mt_core.tracking.step_lines import StepLines

FILE = "events.jsonl"


class EventsFile(logging.Handler):
    """Appends a line for each notice, warning and error, and for what has an ``event`` of its own: ``{time, step, kind, text}``.

    Nothing is written once ``is_ours`` says that the folder was lost: it would be begun anew.
    ``time`` is in seconds since 1970, and ``step`` the last one that was finished. The lines tell what happened, so none goes when a
    run goes on from an earlier step. What cannot be written waits, as figures do. Raises ``OutputError`` where the file cannot be read.
    """

    def __init__(self, path: Path, step: Callable[[], int], is_ours: Callable[[], bool]) -> None:
        super().__init__(logging.INFO)
        self._lines, self._step, self._is_ours = StepLines(path), step, is_ours
        self._lines.cut_back(sys.maxsize)  # of a run that was killed, half a line
        self._writes = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; what is said of this very file is not for it."""
        event = getattr(record, "event", None)
        if self._writes or (event is None and getattr(record, "file_only", False)) or not self._is_ours():
            return
        self._writes = True
        try:
            self._lines.append([self._content(record, event or {})])
        finally:
            self._writes = False

    def close(self) -> None:
        """Write what could not be written so far."""
        self._writes = True
        if self._is_ours():
            self._lines.close()
        super().close()

    def _content(self, record: logging.LogRecord, event: dict[str, Any]) -> dict[str, Any]:
        kind = "notice" if record.levelno < logging.WARNING else record.levelname.lower()
        text = redact(record.getMessage()).removeprefix(f"{kind}: ")
        return {"time": round(record.created, 3), "step": self._step(), "kind": kind, "text": text, **event}
