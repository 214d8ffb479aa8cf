"""Figures as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from pydantic import Field

from mt_core import MtConfig, MtError, StepRecord, TrackedRun


class CsvConfig(MtConfig):
    """Where the table goes."""

    file: str = Field("metrics.csv", min_length=1, description="path; a relative one is inside the run's folder")


class CsvTracker:
    """One line a step, one column a figure. A new figure (the first evaluation) widens the table, which is then written anew."""

    def __init__(self, path: Path, *, first_step: int) -> None:
        self._path = path
        kept = _read(path) if first_step else []
        self._rows = [row for row in kept if int(row["step"]) <= first_step]
        self._columns = list(dict.fromkeys(name for row in self._rows for name in row))
        self._write_all()

    def log(self, record: StepRecord) -> None:
        """Append one line."""
        row = {name: repr(value) for name, value in record.as_dict().items()}
        self._rows.append(row)
        if new := [name for name in row if name not in self._columns]:
            self._columns += new
            self._write_all()
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns, lineterminator="\n").writerow(row)

    def close(self, *, failed: bool) -> None:
        """Every line is written already."""

    def _write_all(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        staged = self._path.with_name(f".tmp-{self._path.name}")
        with staged.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, self._columns, lineterminator="\n")
            if self._columns:
                table.writeheader()
            table.writerows(self._rows)
        os.replace(staged, self._path)


def _read(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: value for name, value in row.items() if value} for row in rows if (row.get("step") or "").isdigit()]


def build_csv(config: CsvConfig, *, run: TrackedRun) -> CsvTracker:
    """The table of a run. Raises ``MtError`` where it has no place, or one outside of the run's folder is taken."""
    if run.output is None and not Path(config.file).is_absolute():
        raise MtError(
            f"tracker csv has no folder for {config.file} (output none); give --trackers.csv.file an absolute path"
        )
    path = (run.output or Path()) / config.file
    outside = run.output is None or not path.resolve().is_relative_to(run.output.resolve())
    if outside and path.exists() and not run.first_step:
        raise MtError(
            f"tracker csv: {path} exists, perhaps with another run's figures; remove it, or name another file"
        )
    return CsvTracker(path, first_step=run.first_step)
