"""``metrics.jsonl``: one record of every optimizer step, flushed, with floats that read back bit for bit.

And what it shares with other files that have lines by step, and are cut back when a run goes on from an earlier one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.protocols import StepRecord


class MetricsFile:
    """Appends records to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: StepRecord) -> None:
        """Write one record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(without_nan(record.as_dict()), allow_nan=False) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All whole records; a last line that a crash cut short is left out."""
        return [json.loads(line) for line in _whole_lines(self.path)]

    def cut_back(self, step: int) -> None:
        """Drop the records after ``step``."""
        cut_back(self.path, step)


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with null for a number that is none, since JSON has no word for it."""
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}


def cut_back(path: Path, step: int) -> None:
    """Drop the lines after ``step``, atomically, and one that a crash cut short: a resumed run writes them again."""
    kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= step]
    staged = path.with_name(f".tmp-{path.name}")
    staged.write_text("".join(kept), encoding="utf-8")
    os.replace(staged, path)


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    # Not splitlines(): a text may hold line separators of Unicode, which JSON need not escape.
    return [f"{line}\n" for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
