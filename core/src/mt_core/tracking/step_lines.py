"""Lines of JSON with a step each, beside the figures of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mt_core.tracking.appender import Appender
from mt_core.tracking.step_lines import cut_back


class StepLines:
    """A file in a run's folder that the run can do without. Every line is an object with a ``step``; one process writes.

    What cannot be written waits for a disk with space, with one warning. A link in its place is not followed.
    """

    def __init__(self, path: Path) -> None:
        self._file = Appender(path)

    def cut_back(self, step: int) -> None:
        """Drop what was written after ``step``, for a run that goes on from there.

        A damaged line goes to a file beside it (``.damaged``), with a warning. Raises ``OutputError`` when the file cannot be
        read or replaced.
        """
        if self._file.path.exists() or self._file.path.is_symlink():
            cut_back(self._file.path, step)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write a line for each, all of them or none."""
        self._file.append(b"".join(map(_line, rows)))

    def close(self) -> None:
        """Write what could not be written so far; say what is lost."""
        self._file.close()


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(row), ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a character; it has to read back as it was
        return json.dumps(dict(row)).encode() + b"\n"
