"""A signal at any moment: the run saves, ends with 75, and goes on as if nobody had sent one."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from mt_train.checkpoint.store import CheckpointStore

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


def signal_run(runs: Any, truth: Any, folder: Path, chance: random.Random, number: int) -> int:
    """One run with a signal at a random moment, and gone on with. Returns how often it came in time."""
    run, kind = folder / f"run-{number}", SIGNALS[number % len(SIGNALS)]
    words = runs.words(run, {"train.steps": truth.steps, "eval.every-steps": 1, "resume": "auto"})
    attempt = runs.start(words)
    assert attempt.pid
    moment = time.monotonic() + chance.uniform(0, 0.8 * truth.seconds)
    while not (run / "run.yaml").exists() and not attempt.has_ended():
        time.sleep(0.005)  # before that, the signals may not yet be ours
    time.sleep(max(0.0, moment - time.monotonic()))
    attempt.send(kind)
    code = attempt.wait()
    assert "Traceback" not in attempt.err, attempt.err
    late = code in (0, -kind)  # it was about to end by itself, and no longer listened
    if not late:
        assert code == 75, attempt.err
        assert f"stopped by {kind.name}" in attempt.err
    saved = truth.check(run)
    assert saved or "nothing is saved" in attempt.err
    code, attempt = runs.run(words)
    assert code == 0, attempt.err
    truth.check_finished(run)
    shutil.rmtree(run)
    return int(not late)


@pytest.fixture(scope="module")
def often_evaluated(runs: Any) -> Any:
    """Twenty steps, most of whose time goes into evaluations and saves."""
    folder = runs.folder / "often-evaluated"
    truth = runs.truth(20, {"eval.every-steps": 1}, folder)
    assert [step for step, _ in CheckpointStore(folder).list()] == list(range(1, 21))
    return truth


def all_signalled(runs: Any, truth: Any, folder: Path, *, seed: int, count: int) -> int:
    """Runs until so many signals came in time; returns how many runs that took."""
    chance, came = random.Random(seed), 0
    for number in range(5 * count):
        if came == count:
            return number
        came += signal_run(runs, truth, folder, chance, number)
    raise AssertionError(f"only {came} of {5 * count} signals came before the end of their runs")


def test_a_signal_at_a_random_moment_saves_and_the_resumed_run_equals_an_undisturbed_one(
    runs: Any, often_evaluated: Any, tmp_path: Path
) -> None:
    all_signalled(runs, often_evaluated, tmp_path, seed=4, count=4)


@pytest.mark.soak
def test_forty_signals_at_random_moments(
    runs: Any, often_evaluated: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = all_signalled(runs, often_evaluated, tmp_path, seed=5, count=40)
    with capsys.disabled():
        print(f"\n40 signals in {number} runs; each saved, and went on bit for bit")
