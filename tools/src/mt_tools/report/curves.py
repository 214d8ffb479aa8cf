"""``metrics.jsonl`` read line by line, whatever its length and whatever befell its lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt_tools.report.files import lines_of
from mt_tools.report.series import Series

SECONDS = "seconds"
"""Time of the training steps so far, without evaluations and saves; of records from before they had it, it is computed here."""


@dataclass
class Curves:
    """The figures of a run, one series for each key of its records."""

    series: dict[str, Series] = field(default_factory=dict)
    seconds: Series = field(default_factory=Series)
    records: int = 0
    last_step: int = 0
    lines: int = 0
    unread: list[int] = field(default_factory=list)
    cut_short: bool = False
    _clock: _Clock = field(default_factory=lambda: _Clock())

    def add(self, line: str) -> int | None:
        """Take in the next line of the file; the step of its record, ``None`` for a line that is none."""
        self.lines += 1
        record = _record(line)
        if record is not None:
            return _add(self, record)
        if line.endswith("\n"):
            self.unread.append(self.lines)
        else:
            self.cut_short = True
        return None

    def __getitem__(self, key: str) -> Series:
        """The series of this key, empty where the run has none."""
        return self.series.get(key) or Series()

    def remarks(self) -> Iterator[str]:
        """Yield what a reader of the page has to know about the figures."""
        if not self.records:
            yield "metrics.jsonl holds no record: no step was finished, or figures were not written"
        if self.unread:
            lines = ", ".join(map(str, self.unread[:5])) + (", …" if len(self.unread) > 5 else "")
            yield f"{len(self.unread)} line(s) of metrics.jsonl are no record and were left out (line {lines})"
        if self.cut_short:
            yield "the last line of metrics.jsonl was cut short and was left out"
        gaps = {key: series.gaps for key, series in self.series.items() if series.gaps}
        if gaps:
            told = ", ".join(f"{key} at {count:,} step(s)" for key, count in gaps.items())
            yield f"not a finite number, and a gap in the curve: {told}"

    def describe_thinning(self) -> str:
        """Return how a long run is drawn; empty where each of its steps is."""
        width = max((series.width for series in self.series.values()), default=1)
        if width == 1:
            return ""
        return (
            f"{self.records:,} steps are drawn as groups of {width:,} steps: the line is the mean of a group, the band"
            " reaches from its lowest to its highest value."
        )


def read_curves(path: Path) -> Curves:
    """All records of a file; one that is missing is empty."""
    curves = Curves()
    for line in lines_of(path):
        curves.add(line)
    return curves


def _record(line: str) -> dict[str, Any] | None:
    """The record in a line; JSON's bare ``NaN`` and ``Infinity`` are understood."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return record if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53 else None


def _add(curves: Curves, record: dict[str, Any]) -> int:
    step: int = record.pop("step")
    curves.records += 1
    curves.last_step = max(curves.last_step, step)
    for key, value in record.items():
        number = to_number(value)
        if number is not None:
            series = curves.series.get(key)
            if series is None:
                series = curves.series[key] = Series()
            series.add(step, number)
    curves.seconds.add(step, curves._clock.after(record))
    return step


def to_number(value: Any) -> float | None:
    """A float, NaN for what was no number when it was written, or ``None`` for other than numbers."""
    if type(value) is float:
        return value
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return float(value) if abs(value) < 2**1000 else math.inf


class _Clock:
    """Time of the steps up to a record: as it says, or added up from the tokens of each, divided by its tokens per second."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0

    def after(self, record: dict[str, Any]) -> float | None:
        """Seconds after this step; ``None`` where the record does not say."""
        said, tokens, rate = (_finite(record.get(key)) for key in (SECONDS, "tokens", "tokens_per_second"))
        if said is not None and said >= self._seconds:  # a run from before records said it may go on, and count from 0
            self._seconds = said
        elif tokens is not None and rate is not None and rate > 0:
            self._seconds += max(0.0, tokens - self._tokens) / rate
        else:
            return None
        self._tokens = self._tokens if tokens is None else tokens
        return self._seconds


def _finite(value: Any) -> float | None:
    """Return a number that is one, else ``None``."""
    number = to_number(value)
    return number if number is not None and math.isfinite(number) else None
