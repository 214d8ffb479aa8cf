"""The table of figures."""

from __future__ import annotations

import csv
import errno
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mt_core import MtError, StepRecord, TrackedRun
from mt_plugin_trackers.table import CsvConfig, build_csv, csv_files


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


def test_a_number_of_numpy_is_a_number(tmp_path: Path) -> None:
    table = build_csv(CsvConfig(), run=run(tmp_path))
    table.log(record(1, eval_spread=np.float64(1.5), eval_odd=np.float64("nan")))
    assert [(row["eval_spread"], row["eval_odd"]) for row in rows(tmp_path)] == [("1.5", "nan")]


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
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    table = build_csv(place, run=run(tmp_path / "one"))
    table.log(record(1))
    with pytest.raises(MtError, match=r"metrics.csv exists, perhaps with another run's figures; remove it, or name"):
        build_csv(place, run=run(tmp_path / "two"))
    with pytest.raises(MtError, match=r"metrics.csv exists, perhaps with another run's figures"):
        build_csv(place, run=run(tmp_path / "two", first_step=1))
    build_csv(place, run=run(tmp_path / "one", first_step=1))
    assert [row["step"] for row in rows(tmp_path)] == ["1"]


@pytest.mark.parametrize("first_step", [0, 2])
@pytest.mark.parametrize(
    "content",
    ["name,step\nann,3\n", "my notes", "\n", "# steps\nstep,loss\n1,2\n", "\x00\xff\n", "stepped,loss\n1,2\n"],
)
def test_a_file_of_somebody_else_stays_as_it_is(tmp_path: Path, content: str, first_step: int) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    with pytest.raises(MtError, match=r"metrics.csv is no table of this tracker .* stays as it is; move it away"):
        build_csv(CsvConfig(), run=run(tmp_path, first_step=first_step))
    assert (tmp_path / "metrics.csv").read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_damaged_lines_are_set_aside_and_one_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    table = build_csv(CsvConfig(), run=run(tmp_path))
    for step in (1, 2, 3):
        table.log(record(step))
    path = tmp_path / "metrics.csv"
    header, first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + first + b"\xff\x00,\n" + b"x,1\n" + second + third[:5])
    again = build_csv(CsvConfig(), run=run(tmp_path, first_step=2))
    again.log(record(3))
    assert path.read_bytes() == header + first + second + third
    assert (tmp_path / "metrics.csv.damaged").read_bytes() == b"\xff\x00,\nx,1\n"


@pytest.mark.parametrize("name", ["metrics.csv", ".tmp-metrics.csv", "metrics.csv.damaged"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("precious")
    table = build_csv(CsvConfig(), run=run(folder))
    table.log(record(1))
    with (folder / "metrics.csv").open("a") as file:
        file.write("damaged\n")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with suppress(MtError, OSError):
        build_csv(CsvConfig(), run=run(folder, first_step=1)).log(record(2))
    with suppress(MtError):
        table.log(record(2))
        table.log(record(3, eval_loss=1.0))
    assert outside.read_text() == "precious"


def test_what_trackers_write_is_named_where_it_is_in_the_folder() -> None:
    assert csv_files(CsvConfig()) == ("metrics.csv", "trackers/csv")
    assert csv_files(CsvConfig(file="./tables/a.csv")) == ("tables/a.csv", "trackers/csv")
    for place in ("/tmp/a.csv", "../a.csv", "a/../../b.csv"):
        assert csv_files(CsvConfig(file=place)) == ("trackers/csv",)


def test_a_long_run_is_not_kept_in_memory(tmp_path: Path) -> None:
    table = build_csv(CsvConfig(), run=run(tmp_path))
    table.log(record(1))
    tracemalloc.start()
    try:
        for step in range(2, 1002):
            table.log(record(step))
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 50_000, "bytes of a thousand steps"
    table.log(record(1002, eval_loss=0.5))
    assert [int(row["step"]) for row in rows(tmp_path)] == list(range(1, 1003))
    assert [float(row["loss"]) for row in rows(tmp_path)] == [1 / 3 / step for step in range(1, 1003)]
    assert [row["eval_loss"] for row in rows(tmp_path)] == [""] * 1001 + ["0.5"]


def test_a_line_that_was_damaged_meanwhile_is_set_aside_when_the_table_widens(tmp_path: Path) -> None:
    table = build_csv(CsvConfig(), run=run(tmp_path))
    table.log(record(1))
    with (tmp_path / "metrics.csv").open("ab") as file:
        file.write(b"\xff\n")
    table.log(record(2, eval_loss=0.5))
    assert [row["step"] for row in rows(tmp_path)] == ["1", "2"]
    assert (tmp_path / "metrics.csv.damaged").read_bytes() == b"\xff\n"


def test_lines_wait_for_a_disk_with_space_and_are_then_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One failure had left the tracker out for the rest of the run."""
    table = build_csv(CsvConfig(), run=run(tmp_path))
    table.log(record(1))

    def full(path: str, flags: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("mt_plugin_trackers.table.open_regular", full)
        patched.setattr("mt_core.files.writing.open_new", full)
        table.log(record(2))
        table.log(record(3, eval_loss=0.5))
        table.log(record(4))
    assert [row["step"] for row in rows(tmp_path)] == ["1"]
    table.log(record(5))
    assert [(row["step"], row["eval_loss"]) for row in rows(tmp_path)] == [
        ("1", ""),
        ("2", ""),
        ("3", "0.5"),
        ("4", ""),
        ("5", ""),
    ]
    with monkeypatch.context() as patched:
        patched.setattr("mt_plugin_trackers.table.open_regular", full)
        table.log(record(6))
        table.close(failed=False)
    said = capsys.readouterr().err
    assert said.count("cannot be written: No space left on device") == 2
    assert said.count("can be written again, and holds what was missing") == 1
    assert "lacks the last 1 lines" in said


def test_a_file_that_somebody_else_puts_there_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    table = build_csv(CsvConfig(), run=run(tmp_path))
    table.log(record(1))
    (tmp_path / "metrics.csv").write_text("my notes\n")
    with pytest.raises(MtError, match="is no table of this tracker"):
        table.log(record(2, eval_loss=0.5))
    assert (tmp_path / "metrics.csv").read_text() == "my notes\n"
