"""``metrics.jsonl``: one record of every optimizer step, flushed, with floats that read back bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from mt_core.protocols import StepRecord
from mt_core.tracking.appender import Appender
from mt_core.tracking.logs import notice
from mt_core.tracking.step_lines import cut_back, read_record, whole_lines

_SHOWN = 5


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
        return list(self.records())

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records that ``read`` returns: all of a long run take gigabytes."""
        return (record for line in whole_lines(self.path) if (record := read_record(line)) is not None)

    def cut_back(self, step: int) -> list[int]:
        """Drop the records after ``step``, and say which of those before it are missing; returns the steps that were dropped."""
        found = cut_back(self.path, step)
        if missing := sorted(set(range(1, step + 1)) - set(found)):
            notice(
                f"warning: {self.path} lacks the figures of {len(missing):,} of {step:,} steps ({spans(missing)}); they"
                " were lost, and the run goes on without them"
            )
        return sorted({number for number in found if number > step})


def without_nan(content: Any) -> Any:
    """Return the same content with null for each number that is none, since JSON has no word for it."""
    if isinstance(content, Mapping):
        return {key: without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def spans(numbers: list[int]) -> str:
    """``3, 7 to 9``."""
    return ", ".join(_first_few(list(_spans_of(numbers))))


def _spans_of(numbers: list[int]) -> Iterator[str]:
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        span = [number for _, number in group]
        yield str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}"


def _first_few(spans: list[str]) -> list[str]:
    return spans[:_SHOWN] + (["…"] if len(spans) > _SHOWN else [])
