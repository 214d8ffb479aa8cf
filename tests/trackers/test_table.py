"""The table of figures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from mt_core import MtError, StepRecord, TrackedRun
from mt_plugin_trackers.table import CsvConfig, build_csv


def record(step: int, **evaluation: float) -> StepRecord:
    return StepRecord(step, 1 / 3 / step, 0.1, 1.0, 9, 1.0, 1.0, 0.0, {}, evaluation)


def run(folder: Path | None, first_step: int = 0) -> TrackedRun:
    return TrackedRun(name="run", output=folder, config={}, first_step=first_step)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_read_back_bit_for_bit_and_a_late_one_widens_the_table(tmp_path: Path) -> None:
    table = build_csv(CsvConfig(), run=run(tmp_path))
    table.log(record(1))
    table.log(record(2, eval_loss=0.1 + 0.2))
    table.log(record(3))
    table.close(failed=False)
    assert [float(row["loss"]) for row in rows(tmp_path)] == [1 / 3, 1 / 6, 1 / 9]
    assert [row["eval_loss"] for row in rows(tmp_path)] == ["", repr(0.1 + 0.2), ""]


def test_a_resumed_run_writes_the_later_lines_again(tmp_path: Path) -> None:
    table = build_csv(CsvConfig(), run=run(tmp_path))
    for step in (1, 2, 3):
        table.log(record(step))
    again = build_csv(CsvConfig(), run=run(tmp_path, first_step=2))
    again.log(record(3))
    assert [row["step"] for row in rows(tmp_path)] == ["1", "2", "3"]
    build_csv(CsvConfig(), run=run(tmp_path))
    assert rows(tmp_path) == [], "a run that starts anew"


def test_a_run_without_a_folder_needs_a_place_for_the_table() -> None:
    with pytest.raises(MtError, match=r"output none.*trackers.csv.file"):
        build_csv(CsvConfig(), run=run(None))


def test_a_table_outside_of_the_run_is_not_written_over(tmp_path: Path) -> None:
    place = CsvConfig(file=str(tmp_path / "metrics.csv"))
    table = build_csv(place, run=run(tmp_path / "one"))
    table.log(record(1))
    with pytest.raises(MtError, match=r"metrics.csv exists, perhaps with another run's figures; remove it, or name"):
        build_csv(place, run=run(tmp_path / "two"))
    build_csv(place, run=run(tmp_path / "one", first_step=1))
    assert [row["step"] for row in rows(tmp_path)] == ["1"]
