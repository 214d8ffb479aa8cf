"""``metrics.jsonl``: one record of every optimizer step, flushed, with floats that read back bit for bit.

And what it shares with other files that have lines by step, and are cut back when a run goes on from an earlier one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from mt_core.errors import OutputError
from mt_core.files.writing import replaced
from mt_core.protocols import StepRecord
from mt_core.tracking.appender import Appender
from mt_core.tracking.logs import notice

_SHOWN = 5
DAMAGED = ".damaged"
"""What the name of a file ends in that holds damaged lines of another."""


class MetricsFile:
    """Appends records to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = Appender(path)

    def append(self, record: StepRecord) -> None:
        """Write one record."""
        self._file.append((json.dumps(without_nan(record.as_dict()), allow_nan=False) + "\n").encode())

    def close(self) -> None:
        """Write what could not be written so far."""
        self._file.close()

    def read(self) -> list[dict[str, Any]]:
        """All whole records; a last line that a crash cut short is left out."""
        return [json.loads(line) for line in _whole_lines(self.path) if _step_of(line) is not None]

    def cut_back(self, step: int) -> list[int]:
        """Drop the records after ``step``, and say which of those before it are missing; returns the steps that were dropped."""
        found = cut_back(self.path, step)
        if missing := sorted(set(range(1, step + 1)) - set(found)):
            notice(
                f"warning: {self.path} lacks the figures of {len(missing):,} of {step:,} steps ({spans(missing)}); they"
                " were lost, and the run goes on without them"
            )
        return sorted({number for number in found if number > step})


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with null for a number that is none, since JSON has no word for it."""
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}


def cut_back(path: Path, step: int) -> list[int]:
    """Drop the lines after ``step``, atomically, and one that a crash cut short: a resumed run writes them again.

    Returns the steps of all lines, those that go as well. A line that is none goes to a file beside it, with a warning. Raises
    ``OutputError`` when the file cannot be read or replaced.
    """
    try:
        lines = _whole_lines(path)
        steps = [_step_of(line) for line in lines]
        damaged = [line for line, number in zip(lines, steps, strict=True) if number is None]
        if damaged:
            _set_aside(path, damaged)
        with replaced(path) as file:
            file.writelines(line for line, n in zip(lines, steps, strict=True) if n is not None and n <= step)
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


def _whole_lines(path: Path) -> list[bytes]:
    if not path.exists() and not path.is_symlink():
        return []
    if path.is_symlink() or not path.is_file():
        raise OutputError(f"{path} is not a regular file; remove it")
    # Not splitlines(): a text may hold line separators of Unicode, which JSON need not escape.
    return [line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]]


def _step_of(line: bytes) -> int | None:
    """The step of a record; nothing where the line is damaged."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return step if type(step) is int else None


def spans(numbers: list[int]) -> str:
    """``3, 7 to 9``."""
    return ", ".join(_few(list(_spans_of(numbers))))


def _spans_of(numbers: list[int]) -> Iterator[str]:
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        span = [number for _, number in group]
        yield str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}"


def _few(spans: list[str]) -> list[str]:
    return spans[:_SHOWN] + (["…"] if len(spans) > _SHOWN else [])
