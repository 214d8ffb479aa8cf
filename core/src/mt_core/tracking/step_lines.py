"""Lines of JSON with a step each, which are cut back when a run goes on from an earlier one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mt_core.errors import OutputError
from mt_core.files.writing import replace_file
from mt_core.tracking.appender import Appender
from mt_core.tracking.logs import notice

DAMAGED = ".damaged"
"""End of the name of a file that holds damaged lines of another."""


class StepLines:
    """A file of JSON lines in a run's folder, each with a ``step``; one process writes. A write that fails does not end the run.

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


def cut_back(path: Path, step: int) -> list[int]:
    """Drop the lines after ``step``, atomically, and one that a crash cut short: a resumed run writes them again.

    Returns the steps of all lines, those that go as well. A line that is none goes to a file beside it, with a warning. Raises
    ``OutputError`` when the file cannot be read or replaced.
    """
    try:
        steps = [None if record is None else record["step"] for record in map(read_record, whole_lines(path))]
        if None in steps:
            _set_aside(path, [line for line, n in zip(whole_lines(path), steps, strict=True) if n is None])
        with replace_file(path) as file:
            lines = zip(whole_lines(path), steps, strict=True)
            file.writelines(line for line, n in lines if n is not None and n <= step)
    except OSError as error:
        raise OutputError(f"{path} cannot be cut back to step {step}: {error.strerror or error}") from error
    return [number for number in steps if number is not None]


def _set_aside(path: Path, damaged: list[bytes]) -> None:
    aside = path.with_name(f"{path.name}{DAMAGED}")
    Appender(aside).append(b"".join(damaged))
    notice(
        f"warning: {len(damaged)} line(s) of {path} are no records, and are now in {aside.name}; the run goes on"
        " without them"
    )


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file of any size, without a last one that a crash cut short; none where there is no file."""
    if not path.exists() and not path.is_symlink():
        return
    if path.is_symlink() or not path.is_file():
        raise OutputError(f"{path} is not a regular file; remove it")
    with path.open("rb") as file:  # as bytes: a text may hold line separators of Unicode, which JSON need not escape
        yield from (line for line in file if line.endswith(b"\n"))


def read_record(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line, which has a step; nothing where the line is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and type(record.get("step")) is int else None
