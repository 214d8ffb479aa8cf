"""metrics.jsonl as a crash, a disk or a loss that is no number leaves it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from mt_tools.report.curves import Curves, read_curves


def curves_of(tmp_path: Path, text: str) -> Curves:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return read_curves(path)


def test_the_last_line_of_a_crash_is_left_out_and_said(tmp_path: Path) -> None:
    curves = curves_of(tmp_path, '{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    assert (curves.records, curves.last_step, curves.unread) == (1, 1, [])
    assert list(curves.remarks()) == ["the last line of metrics.jsonl was cut short and was left out"]


def test_broken_lines_in_the_middle_are_told_by_number(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "loss": 2}',
        "nothing",
        "[1]",
        '{"loss": 3}',
        '{"step": true}',
        "\udcff",
        '{"step": 2, "loss": 1}',
    ]
    curves = curves_of(tmp_path, "\n".join(lines) + "\n")
    assert curves.series["loss"].data()["y"] == [2, 1]
    assert list(curves.remarks()) == ["5 line(s) of metrics.jsonl are no record and were left out (line 2, 3, 4, 5, 6)"]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "null", "1" + "0" * 400])
def test_a_loss_that_is_not_finite_is_a_gap_and_said(tmp_path: Path, word: str) -> None:
    curves = curves_of(tmp_path, f'{{"step": 1, "loss": 2}}\n{{"step": 2, "loss": {word}}}\n{{"step": 3, "loss": 1}}\n')
    assert curves["loss"].data()["y"] == [2, None, 1]
    assert list(curves.remarks()) == ["not a finite number, and a gap in the curve: loss at 1 step(s)"]


@pytest.mark.parametrize("text", ["", "\n"])
def test_without_a_record_the_page_says_so(tmp_path: Path, text: str) -> None:
    assert "no record: no step was finished" in next(curves_of(tmp_path, text).remarks())
    assert next(read_curves(tmp_path / "missing.jsonl").remarks()) == next(curves_of(tmp_path, "").remarks())


def test_what_is_no_number_is_no_curve(tmp_path: Path) -> None:
    curves = curves_of(tmp_path, '{"step": 1, "loss": 2, "note": "fine", "on": true, "list": [1], "expert": 4}\n')
    assert list(curves.series) == ["loss", "expert"]


def test_time_is_the_tokens_of_each_step_over_its_rate(tmp_path: Path) -> None:
    records = [
        {"step": 1, "tokens": 100, "tokens_per_second": 50},
        {"step": 2, "tokens": 200, "tokens_per_second": None},
        {"step": 3, "tokens": 300, "tokens_per_second": 100},
    ]
    curves = curves_of(tmp_path, "".join(json.dumps(record) + "\n" for record in records))
    assert curves.seconds.data()["y"] == [2, None, 4]


def test_time_is_what_records_say_also_where_only_later_ones_do(tmp_path: Path) -> None:
    records = [
        {"step": 1, "tokens": 100, "tokens_per_second": 50},
        {"step": 2, "tokens": 100, "tokens_per_second": 0, "seconds": 7.5},
        {"step": 3, "tokens": 200, "tokens_per_second": 50, "seconds": None},
        {"step": 4, "tokens": 300, "tokens_per_second": 50, "seconds": 2.0},
    ]
    curves = curves_of(tmp_path, "".join(json.dumps(record) + "\n" for record in records))
    assert curves.seconds.data()["y"] == [2, 7.5, 9.5, 11.5]


def test_a_long_run_is_read_in_little_memory(tmp_path: Path) -> None:
    line = '{{"step": {}, "loss": 2.125, "lr": 0.001, "grad_norm": 1.5, "tokens": {}, "tokens_per_second": 900}}\n'
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        file.writelines(line.format(step, step * 100) for step in range(1, 30_001))
    tracemalloc.start()
    curves = read_curves(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert curves.records == 30_000
    assert peak < path.stat().st_size / 2
    assert curves.describe_thinning().startswith("30,000 steps are drawn as groups of 32 steps:")
