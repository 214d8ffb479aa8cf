"""The log file of a run, ``<output>/logs/rank-N.log``, and which of its processes speaks on the console."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from mt_core import notice
from mt_core.config.secrets import redact
from mt_core.config.terminal import escape_controls
from mt_core.files import make_folder, open_regular
from mt_core.tracking.logs import CONSOLE, LOGGER, for_the_file, print_text
from mt_train.tracking.events import FILE, EventsFile

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def is_first() -> bool:
    """Return whether this process speaks for the run: our launcher has spoken before its processes, and rank 0 speaks for the others."""
    return os.environ.get("RANK", "0") == "0" and "MT_STORE" not in os.environ


def first_notice(text: str) -> None:
    """Say a notice in the one process that speaks for the run."""
    if is_first():
        notice(text)


def show(text: str) -> None:
    """Show what the user asked to see: on standard output, unless ``log.console_level`` is above info."""
    if CONSOLE.level <= logging.INFO:
        print_text(text, sys.stdout)
    for_the_file(text)


class RunLog:
    """The log file of one process of a run, and of rank 0 its events. What is said before ``open`` is kept and written then.

    ``step`` gives the last step that was finished, for the events.
    """

    def __init__(self, rank: int, level: str) -> None:
        self._name = f"rank-{rank}.log"
        self._is_first = rank == 0
        self.step: Callable[[], int] = lambda: 0
        self._events: EventsFile | None = None
        self._level = LEVELS[level]
        self._early = _EarlyRecords(self._level)
        self._file: logging.FileHandler | None = None

    def open(self, run_folder: Path | None, is_ours: Callable[[], bool] = lambda: True) -> None:
        """Write to the run's folder from now on, its events as long as it is ours; where that fails, a warning says so.

        Without a folder nothing is written, and what was said is not kept any longer.
        """
        if run_folder is None:
            self._forget_early()
            return
        if self._is_first:
            self._events = EventsFile(run_folder / FILE, lambda: self.step(), is_ours)
            self._follow(self._events)
        folder = run_folder / "logs"
        try:
            make_folder(folder)
            self._file = _File(folder / self._name)
        except OSError as error:
            CONSOLE.emit(_unwritable_record(folder / self._name, error))
        else:
            self._file.setLevel(self._level)
            self._file.setFormatter(_Redaction("%(asctime)s %(levelname)-7s %(message)s"))
            self._follow(self._file)
        self._forget_early()

    def _forget_early(self) -> None:
        """Keep nothing more of what is said: the file has it, or there will be none. A long run says a lot."""
        LOGGER.removeHandler(self._early)
        self._early.records.clear()

    def _follow(self, handler: logging.Handler) -> None:
        """Give a handler what was said so far, and what will be."""
        for record in self._early.records:
            if record.levelno >= handler.level:
                handler.handle(record)
        LOGGER.addHandler(handler)

    def close(self) -> None:
        """Leave the logger as it was."""
        self._forget_early()
        if self._events is not None:
            LOGGER.removeHandler(self._events)
            self._events.close()
        if self._file is not None:
            LOGGER.removeHandler(self._file)
            self._file.close()


class _EarlyRecords(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []
        LOGGER.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def log_to_file(rank: int, *, console: str, file: str) -> Iterator[RunLog]:
    """Levels and a log file for one run; gone again at the end."""
    before = CONSOLE.level
    CONSOLE.setLevel(LEVELS[console])
    log = RunLog(rank, file)
    try:
        yield log
    finally:
        log.close()
        CONSOLE.setLevel(before)


class _Redaction(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(redact(super().format(record)))


class _File(logging.FileHandler):
    """A log that a run can do without: when it cannot be written, one warning says so, and no traceback."""

    def __init__(self, path: Path) -> None:
        self._failing = False
        super().__init__(path, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=open_regular)  # type: ignore[return-value]

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._report_failure(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:  # what still waited to be written
            self._report_failure(error)

    def _report_failure(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            CONSOLE.emit(_unwritable_record(Path(self.baseFilename), error))


def _unwritable_record(path: Path, error: OSError) -> logging.LogRecord:
    text = f"warning: {path} cannot be written: {error.strerror or error}; the run goes on, and its log has gaps"
    return logging.LogRecord(LOGGER.name, logging.WARNING, "", 0, text, None, None)
