"""A run in a line of the index: read from the ends of its files, so that a folder of long runs is there at once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from mt_tools.report import open_plain, read_plain, read_state, round_for_json

from .tail import status_of

END_BYTES = 32 * 2**10
"""Bytes at the end of ``metrics.jsonl`` in which the last records are."""
POINTS = 48
"""Points of the small curve: records at equal distances in the file."""
LINE_BYTES = 4096
"""Bytes in which a whole record is found."""
MOST_SECONDS = 1e12
"""Longest time that a run is said to take still; a damaged record may make it any."""
BLOCK_BYTES = 2**20
EVALUATED = b'"eval_'
FIGURES = {"eval_reward": max, "eval_loss": min}
"""The figure that a run is known by, where it has it, and which of two is better; else its reward or its loss."""


@dataclass
class Scan:
    """Last and best figure of the evaluations, looked for in what the file has grown by."""

    offset: int = 0
    inode: tuple[int, int] = (0, 0)
    last: dict[str, tuple[int, float]] = field(default_factory=dict)
    best: dict[str, tuple[int, float]] = field(default_factory=dict)

    def go_on(self, file: BinaryIO, most_bytes: int) -> bool:
        """Read on; false where the end was reached."""
        status = os.fstat(file.fileno())
        if self.inode != (status.st_dev, status.st_ino) or status.st_size < self.offset:
            self.offset, self.inode, self.last, self.best = 0, (status.st_dev, status.st_ino), {}, {}
        file.seek(self.offset)
        content = file.read(most_bytes)
        whole = content.rfind(b"\n") + 1
        place = content.find(EVALUATED, 0, whole)
        while place >= 0:
            begin, end = content.rfind(b"\n", 0, place) + 1, content.find(b"\n", place)
            self._take(content[begin:end])
            place = content.find(EVALUATED, end, whole)
        self.offset += whole or (len(content) if len(content) == most_bytes else 0)
        return self.offset + LINE_BYTES < status.st_size and bool(content)

    def _take(self, line: bytes) -> None:
        record = record_of(line)
        for key, better in FIGURES.items():
            value = record.get(key)
            if isinstance(value, int | float) and _number(value) is not None:
                self.last[key] = (record["step"], value)
                best = self.best.get(key)
                if best is None or (better(value, best[1]) == value and value != best[1]):
                    self.best[key] = (record["step"], value)


def record_of(line: bytes) -> dict[str, Any]:
    """Return the record in a line; an empty one where it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and _is_count(record.get("step")) else {}


def _is_count(value: object) -> bool:
    """Return whether a value is a number of steps that a page can compute with."""
    return type(value) is int and 0 <= value < 2**53


_NOTHING_SEEN: tuple[object, ...] = ("", "", "", "")


class Glance:
    """Keeps the line of one run, and reads again what has changed."""

    def __init__(self, identifier: str, folder: Path) -> None:
        self.identifier, self.folder = identifier, folder
        self.scan = Scan()
        self.row: dict[str, Any] = {"id": identifier}
        self.is_scanned = False
        self._seen: tuple[object, ...] = _NOTHING_SEEN
        self._is_live = True
        self._about: Mapping[str, Any] = {}

    def refresh(self, now: float) -> bool:
        """Read what has changed; true where the line is another one. Raises ``OSError`` where the folder is gone or cannot be read."""
        seen = tuple(status_of(self.folder / name) for name in (".lock", "about.json", "metrics.jsonl", "completed"))
        if seen == self._seen and not self._is_live:
            return False
        if seen[1:2] != self._seen[1:2]:
            self._about = _object(read_plain(self.folder / "about.json"))
        if seen == self._seen:
            row = self.row | self._state(now)
        else:
            os.stat(self.folder)
            self.is_scanned = self.is_scanned and seen[2] == self._seen[2]
            row = {"id": self.identifier, **self._figures(), "model": str(self._about.get("model") or "")[:200]}
            row |= {"started": str(self._about.get("started") or "")[:25]}
            row |= self._state(now, row)
        self._seen = seen
        changed, self.row = row != self.row, row
        return changed

    def scan_on(self, most_bytes: int = BLOCK_BYTES) -> bool:
        """Look for evaluations in the next part of the file; false where there is none. A link or a missing file has none."""
        file = open_plain(self.folder / "metrics.jsonl")
        if file is None:
            self.is_scanned = True
            return False
        with file:
            more = self.scan.go_on(file, most_bytes)
        self.is_scanned = not more
        self._seen = _NOTHING_SEEN if self.is_scanned else self._seen
        return more

    def _state(self, now: float, row: Mapping[str, Any] | None = None) -> dict[str, Any]:
        row = self.row if row is None else row
        completed = status_of(self.folder / "completed") is not None
        seconds = row.get("step_seconds") or 0.0
        state = read_state(self.folder, self._about, completed=completed, now=now, step_seconds=seconds)
        self._is_live = state.is_live
        left = None
        if state.word == "running" and row.get("total") and row.get("step") is not None and seconds:
            left = round(min(max(0, row["total"] - row["step"]) * seconds, MOST_SECONDS))
        return {"state": state.word, "text": state.text, "reason": state.reason[:500], "left": left}

    def _figures(self) -> dict[str, Any]:
        total = self._about.get("total_steps")
        row: dict[str, Any] = {"total": total if _is_count(total) else None, "step": None, "spark": []}
        file = open_plain(self.folder / "metrics.jsonl")
        if file is None:
            return row
        with file:
            size = os.fstat(file.fileno()).st_size
            records = _last_records(file, size)
            if not records:
                return row
            if self.scan.offset and not self.is_scanned:  # a short way to go, of a run that is under way
                self.is_scanned = not self.scan.go_on(file, BLOCK_BYTES)
            last = records[-1]
            row |= {"step": last["step"], "rate": _rate(records), "step_seconds": _step_seconds(records)}
            key = next((key for key in FIGURES if key in self.scan.last), "reward" if "reward" in last else "loss")
            figure = self.scan.last.get(key) or (last["step"], last.get(key))
            row |= {"figure": key, "last": _number(figure[1]), "best": _point(self.scan.best.get(key))}
            drawn = "reward" if "reward" in last else "loss"
            row["spark"] = _points(file, size, drawn, last)
        return row


def _object(text: str | None) -> Mapping[str, Any]:
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _last_records(file: BinaryIO, size: int) -> list[dict[str, Any]]:
    file.seek(max(0, size - END_BYTES))
    lines = file.read(END_BYTES).split(b"\n")[:-1]
    return [record for line in lines[-20:] if (record := record_of(line))]


def _points(file: BinaryIO, size: int, key: str, last: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return steps and values of some records, the last one included; those of equal steps once."""
    points: dict[int, float] = {}
    for place in range(POINTS):
        file.seek(place * size // POINTS)
        lines = file.read(LINE_BYTES).split(b"\n")
        record = record_of(lines[0 if place == 0 else 1]) if len(lines) > 2 or place == 0 else {}
        value = _number(record.get(key))
        if value is not None:
            points[record["step"]] = value
    value = _number(last.get(key))
    if value is not None:
        points[last["step"]] = value
    return sorted(points.items())


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round_for_json(float(value)) if abs(value) < 1e300 else None


def _point(point: tuple[int, float] | None) -> list[float | None] | None:
    return None if point is None else [point[0], _number(point[1])]


def _rate(records: list[dict[str, Any]]) -> float | None:
    rates = [rate for record in records if (rate := _number(record.get("tokens_per_second"))) is not None]
    return round_for_json(sum(rates) / len(rates), digits=4) if rates else None


def _step_seconds(records: list[dict[str, Any]]) -> float | None:
    """Return the mean time of the last steps: as they say, or their tokens by their rates."""
    seconds = []
    for before, after in pairwise(records):
        first, last = (_number(record.get("seconds")) for record in (before, after))
        if first is not None and last is not None and last > first and after["step"] > before["step"]:
            seconds.append((last - first) / (after["step"] - before["step"]))
            continue
        tokens = (_number(after.get("tokens")) or 0) - (_number(before.get("tokens")) or 0)
        rate, steps = _number(after.get("tokens_per_second")), after["step"] - before["step"]
        if rate and rate > 0 and tokens > 0 and steps > 0:
            seconds.append(tokens / rate / steps)
    mean = sum(seconds) / len(seconds) if seconds else math.inf
    return mean if math.isfinite(mean) else None
