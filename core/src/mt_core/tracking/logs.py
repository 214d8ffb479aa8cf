"""Words of a command or a run for a person: on the console, and for the log file that a run has."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from mt_core.config.secrets import redact
from mt_core.config.terminal import escape_controls
from mt_core.tracking.streams import make_printable

LOGGER = logging.getLogger("mt_core")
_PREFIXES = {"warning:": logging.WARNING, "error:": logging.ERROR}


class _Console(logging.Handler):
    """Standard error as it is now: a test or a notebook may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "file_only", False):
            print_text(record.getMessage(), sys.stderr)


def print_text(text: str, stream: TextIO) -> None:
    """Print to a console that may be gone or a file on a full disk: the run goes on without it, except where nobody reads."""
    try:
        print(escape_controls(redact(text)), file=stream, flush=True)
    except UnicodeEncodeError:  # no command has made it ready: a Python program, for one
        make_printable(stream)
        print(escape_controls(redact(text)), file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        for_the_file(f"not shown ({error.strerror or error}): {text}")


CONSOLE = _Console(logging.INFO)
LOGGER.addHandler(CONSOLE)
LOGGER.setLevel(logging.DEBUG)
LOGGER.propagate = False


def notice(text: str) -> None:
    """Print a notice to the user. ``warning:`` at the start makes it a warning."""
    LOGGER.log(_PREFIXES.get(text.partition(" ")[0], logging.INFO), text)


def for_the_file(text: str, level: int = logging.INFO, *, event: Mapping[str, Any] | None = None) -> None:
    """Write into the log file only. ``event`` (its ``kind``, and what is known of it) makes it a record of the run's events, too."""
    LOGGER.log(level, text, extra={"file_only": True, "event": event})
