"""``metrics.jsonl``: one record of every optimizer step, flushed, with floats that read back bit for bit."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from mt_core.protocols import StepRecord


class MetricsFile:
    """Appends records to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: StepRecord) -> None:
        """Write one record. A value that is not finite is written as null, since JSON has no word for it."""
        values = {
            key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in record.as_dict().items()
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values, allow_nan=False) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All whole records; a last line that a crash cut short is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def cut_back(self, step: int) -> None:
        """Drop the records after ``step``, atomically: a resumed run writes them again."""
        kept = [record for record in self.read() if record["step"] <= step]
        staged = self.path.with_name(".tmp-metrics.jsonl")
        staged.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        os.replace(staged, self.path)
