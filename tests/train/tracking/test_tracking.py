"""Numbers on disk, on the screen and in a picture."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core.protocols import StepRecord
from mt_core.tracking.step_lines import cut_back
from mt_train.cli.train import main
from mt_train.tracking.console import ProgressLines, duration
from mt_train.tracking.metrics import MetricsFile
from mt_train.tracking.plot import plot_losses, smooth


def record(step: int, loss: float = 1.0, **evaluation: float) -> StepRecord:
    return StepRecord(
        step=step,
        loss=loss,
        lr=1e-3,
        grad_norm=2.0,
        tokens=step * 10,
        tokens_per_second=100.0,
        memory_gib=0.5,
        data_wait_seconds=0.0,
        evaluation=evaluation,
    )


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_floats_read_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, losses: list[float]) -> None:
    file = MetricsFile(tmp_path_factory.mktemp("metrics") / "metrics.jsonl")
    for step, loss in enumerate(losses, 1):
        file.append(record(step, loss))
    assert [entry["loss"] for entry in file.read()] == losses


def test_a_resumed_run_cuts_back_what_it_will_write_again_and_a_torn_line(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(1, 6):
        file.append(record(step, float("nan") if step == 2 else step / 3))
    with file.path.open("a") as text:
        text.write('{"step": 6, "lo')
    file.cut_back(3)
    assert [entry["step"] for entry in file.read()] == [1, 2, 3]
    assert [entry["loss"] for entry in file.read()] == [1 / 3, None, 1.0]


def test_progress_is_printed_on_time_with_the_time_left() -> None:
    said: list[str] = []
    now = iter(range(100))
    lines = ProgressLines(
        lambda records: f"{len(records)} records",
        total_steps=20,
        every_steps=5,
        say=said.append,
        clock=lambda: next(now),
    )
    for step in range(1, 21):
        lines.append(record(step, **({"eval_loss": 2.0} if step == 7 else {})))
    assert said == [
        "step  1/20 | 1 records | 19s left",
        "step  5/20 | 4 records | 6s left",
        "step  7/20 | 2 records | 6s left",
        "step 10/20 | 3 records | 4s left",
        "step 15/20 | 5 records | 2s left",
        "step 20/20 | 5 records | 0s left",
    ]


def test_a_printer_that_fails_is_named_once_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(records: Sequence[StepRecord]) -> str:
        return str(records[-1].metrics["no_such_figure"])

    said: list[str] = []
    lines = ProgressLines(broken, total_steps=3, every_steps=1, name="odd-line", say=said.append, clock=lambda: 0.0)
    for step in range(1, 4):
        lines.append(record(step))
    assert [line.split(" | ")[1] for line in said] == ["loss 1.0000"] * 3
    warned = capsys.readouterr().err
    assert warned.count("warning: task print odd-line failed at step 1: KeyError: 'no_such_figure'") == 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59, "59s"), (61, "1m01s"), (3660, "1h01m"), (90_000, "1d01h"), (-5, "0s")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_curve_is_drawn_for_any_number_of_records(tmp_path: Path) -> None:
    for count in (1, 3, 3000):
        plot_losses(
            [record(step, 5 / step, eval_loss=6 / step).as_dict() for step in range(1, count + 1)], tmp_path / "a.png"
        )
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    plot_losses([{"step": 1, "loss": None}], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_the_records_of_a_long_run_are_read_in_little_memory(tmp_path: Path) -> None:
    """All figures of these steps as objects would take 4 MB."""
    line = json.dumps({"step": 1, "loss": 2.5, **{f"figure_{number}": number + 0.5 for number in range(30)}}) + "\n"
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.path.write_text(2_000 * line + "damaged\n" + line[:20])
    tracemalloc.start()
    steps = sum(record["loss"] == 2.5 for record in metrics.records())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert steps == 2_000
    assert peak < 2**18


def test_smoothing_starts_at_the_first_value_and_keeps_a_constant() -> None:
    assert smooth([3.0] * 5) == pytest.approx([3.0] * 5)
    assert smooth([4.0, 0.0])[0] == pytest.approx(4.0)


def test_a_profile_is_written_for_a_few_steps(tmp_path: Path) -> None:
    words = ["--model", "llama", "--model.n-layers", "1", "--train.steps", "5", "--train.micro-batch-size", "1"]
    assert main([*words, "--output", "none", "--eval.every-steps", "none", "--profile", str(tmp_path / "p")]) == 0
    assert '"traceEvents"' in (tmp_path / "p" / "trace-rank-0.json").read_text()


def test_cutting_back_keeps_whole_lines_with_any_separator_of_unicode_in_them(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [json.dumps({"step": step, "text": "a\u2028b\x85c"}, ensure_ascii=False) + "\n" for step in (1, 2, 3)]
    path.write_text("".join(lines) + '{"step": 2, "te', encoding="utf-8")
    cut_back(path, 2)
    assert path.read_text(encoding="utf-8") == "".join(lines[:2])
    assert [item.name for item in tmp_path.iterdir()] == ["lines.jsonl"]
