"""Two runs on one folder, and clocks that go back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mt_train.checkpoint.store import CheckpointStore, find
from mt_train.tracking.metrics import MetricsFile


@pytest.fixture(scope="module")
def truth(runs: Any) -> Any:
    return runs.truth(3)


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
def test_of_three_runs_started_at_once_one_trains_and_the_others_say_who_has_the_folder(
    runs: Any, truth: Any, tmp_path: Path, resumed: bool
) -> None:
    run = tmp_path / "run"
    words = runs.words(run, {"train.steps": 3})
    if resumed:
        code, attempt = runs.run([*words, "--train.max-minutes", "1e-9"])
        assert code == 75, attempt.err
        words = runs.words(run, {"train.steps": 3, "resume": "auto", "train.max-minutes": "none"})
    attempts = [runs.start(words) for _ in range(3)]
    codes = [attempt.wait() for attempt in attempts]
    losers = [attempt for code, attempt in zip(codes, attempts, strict=True) if code]
    winners = [attempt for code, attempt in zip(codes, attempts, strict=True) if not code]
    assert winners, [attempt.err for attempt in attempts]
    assert resumed or len(winners) == 1
    names = [f"in use by process {attempt.pid} on" for attempt in winners]
    for attempt in losers:
        late = not resumed and "already exists and is not empty" in attempt.err  # the winner had already begun
        assert late or any(name in attempt.err for name in names), attempt.err
    truth.check_finished(run)


def test_no_clock_and_no_date_of_a_file_decides_anything(runs: Any, truth: Any, tmp_path: Path) -> None:
    """The run starts in a year's time, goes on now, and the dates of its files lie."""
    run = tmp_path / "run"
    words = runs.words(run, {"train.steps": 3, "resume": "auto", "log.every-steps": 1})
    code, attempt = runs.run([*words, "--train.max-minutes", "1e-9"], clock=365 * 86400.0)
    assert code == 75, attempt.err
    code, attempt = runs.run([*words, "--train.max-minutes", "1e-9"], clock=0.0)
    assert code == 75, attempt.err
    first, second = (path for _, path in CheckpointStore(run).list())
    for path, when in ((first, 2**32), (second, 0)):
        for each in (path, *path.rglob("*")):
            os.utime(each, (when, when))
    assert find(run) == second
    code, attempt = runs.run([*words, "--train.max-minutes", "none"], clock=-365 * 86400.0)
    assert code == 0, attempt.err
    assert truth.check(run) == [2, 3], "the oldest save went, whatever its date"
    truth.check_finished(run)
    assert all(record["tokens_per_second"] > 0 for record in MetricsFile(run / "metrics.jsonl").read())
    code, attempt = runs.run([str(run)], module="mt_tools.cli.report")
    assert code == 0, attempt.err
    assert steps_on_the_board(run / "tensorboard") == [1, 2, 3]


def steps_on_the_board(folder: Path) -> list[int]:
    """As TensorBoard itself reads them, with what a resumed run replaces left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder))
    board.Reload()
    return [event.step for event in board.Scalars("train/loss")]
