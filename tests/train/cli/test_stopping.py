"""A run that is told to stop saves, ends with 75, and goes on as if nothing had happened."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_core.nn import TokenObjective
from mt_tools.cli.eval import main as evaluate
from mt_tools.cli.generate import main as generate
from mt_train.assemble import encoder
from mt_train.checkpoint.store import find, verify
from mt_train.cli.train import main
from mt_train.engine.engine import Engine
from mt_train.tracking.metrics import MetricsFile

BASE = ["--model", "llama", "--model.n-layers", "1", "--model.dropout", "0.1", "--train.steps", "6"]
BASE += ["--train.micro-batch-size", "2", "--eval.every-steps", "2", "--data.eval", "4"]
FIGURES = ("step", "loss", "grad_norm", "eval_loss")


def figures(run: Path) -> list[dict[str, Any]]:
    return [{k: r[k] for k in FIGURES if k in r} for r in MetricsFile(run / "metrics.jsonl").read()]


@pytest.fixture(scope="module")
def undisturbed_records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert main([*BASE, "--output", str(run)]) == 0
    return figures(run)


def send_signal_before(method: Callable[..., Any], number: int, at: int, *, fails: bool = False) -> Callable[..., Any]:
    """The method, with a signal to ourselves before its ``at``-th call, or a failure."""
    calls = 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and fails:
            raise RuntimeError("as if it failed")
        if calls == at:
            os.kill(os.getpid(), number)
        return method(*arguments, **named)

    return wrapped


@pytest.mark.parametrize(
    ("method", "number", "at", "step"),
    [("train_step", signal.SIGTERM, 3, 3), ("train_step", signal.SIGINT, 1, 1), ("evaluate", signal.SIGUSR1, 2, 4)],
    ids=["step", "first-step", "evaluation"],
)
def test_a_signal_saves_and_the_resumed_run_equals_an_undisturbed_one(
    method: str,
    number: int,
    at: int,
    step: int,
    undisturbed_records: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Engine, method, send_signal_before(getattr(Engine, method), number, at))
        assert main([*BASE, "--output", str(run)]) == 75
    said = capfd.readouterr().err
    name = signal.Signals(number).name
    assert f"{name}: saving after this step; a second one stops at once" in said
    assert f"stopped by {name} after step {step} of 6: saved; go on with: mt-train --resume {run}" in said
    assert json.loads((find(run) / "manifest.json").read_text())["step"] == step
    assert not (run / "completed").exists()
    assert main(["--resume", str(run)]) == 0
    assert (
        f"notice: the run goes on from {run}/checkpoints/step-{step:08d}, after step {step} of 6"
        in capfd.readouterr().err
    )
    assert figures(run) == undisturbed_records
    assert (run / "completed").exists()


def test_a_signal_while_rows_are_read_ends_at_once_and_the_same_command_starts_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*BASE, "--output", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", send_signal_before(encoder.encode, signal.SIGTERM, 1))
        assert main(words) == 75
    assert "stopped by SIGTERM before the first step, so nothing is saved; start it again" in capfd.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "train_step", send_signal_before(Engine.train_step, signal.SIGTERM, 1, fails=True))
        assert main(words) == 1, "in the middle of its first step"
    capfd.readouterr()
    assert main(words) == 0
    assert "error" not in capfd.readouterr().err
    assert "already exists and is not empty" in (main(words) and capfd.readouterr().err)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_run_whose_folder_disappears_ends_with_1_and_says_what_is_lost(
    replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run, steps, step = tmp_path / "run", [0], Engine.train_step

    def removed(*arguments: Any) -> Any:
        steps[0] += 1
        if steps[0] == 3:
            shutil.rmtree(run)
            if replaced:
                run.mkdir()
        return step(*arguments)

    monkeypatch.setattr(Engine, "train_step", removed)
    assert main([*BASE, "--output", str(run)]) == 1
    said = capfd.readouterr()
    assert (
        f"error: output {run} is not the folder any more that this run writes to: it was removed or moved" in said.err
    )
    assert "done" not in said.out
    assert steps == [3]
    assert not list(run.iterdir()) if replaced else not run.exists(), "no half of a run is left there"


def test_without_a_folder_a_signal_ends_the_run_and_says_that_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Engine, "train_step", send_signal_before(Engine.train_step, signal.SIGTERM, 2))
    assert main([*BASE, "--output", "none"]) == 75
    assert "after step 2 of 6: nothing is saved (output none)" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_minutes_run_out_and_resume_auto_goes_on_until_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same command, again and again, as a scheduler that requeues gives it."""
    base = [word if word != "4" else "none" for word in BASE]
    assert main([*base, "--output", str(tmp_path / "undisturbed")]) == 0
    words = [*base, "--output", str(tmp_path / "run"), "--resume", "auto", "--train.max-minutes", "1e-9"]
    codes = [main(words) for _ in range(7)]
    said = capfd.readouterr()
    assert codes == [75, 75, 75, 75, 75, 0, 0]
    assert said.err.count("nothing to resume in") == 1
    assert "stopped by train.max_minutes=1e-09 after step 1 of 6" in said.err
    assert "is completed; set --train.steps or --train.epochs higher" in said.out
    assert figures(tmp_path / "run") == figures(tmp_path / "undisturbed")


def test_resume_auto_starts_a_run_anew_that_saved_nothing_and_never_a_strangers_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*BASE, "--output", str(run), "--train.steps", "1"]) == 2, "given twice"
    words = [
        "--model",
        "llama",
        "--model.n-layers",
        "1",
        "--train.steps",
        "1",
        "--resume",
        "auto",
        "--output",
        str(run),
    ]
    assert main(words) == 0
    (run / "completed").unlink()
    for path in sorted((run / "checkpoints").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert main(words) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    capfd.readouterr()
    assert main([*words[:-1], str(tmp_path / "mine")]) == 1
    assert "already exists and is not empty" in capfd.readouterr().err


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mt_train.cli.train", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_steps(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step "):
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


def test_two_processes_stop_at_the_same_step_and_the_run_can_be_used(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "llama", "--model.n-layers", "1", "--train.steps", "100000", "--train.micro-batch-size", "2"]
    process = start([*words, "--nproc-per-node", "2", "--output", "run", "--parallel.zero-stage", "2"], tmp_path)
    wait_for_steps(process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 75, errors
    assert "saved; go on with: mt-train --resume run" in errors
    assert find(tmp_path / "run").is_dir()
    assert {path.name for path in (tmp_path / "run" / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}
    assert "rank 1 of 2 on " in (tmp_path / "run" / "logs" / "rank-1.log").read_text()
    assert generate(["--run", str(tmp_path / "run"), "--prompt", "The ", "--max-new-tokens", "3", "--greedy"]) == 0
    capfd.readouterr()
    assert evaluate(["--run", str(tmp_path / "run"), "--output", "none"]) == 0
    assert "held out" in capfd.readouterr().out


def test_two_processes_agree_to_leave_an_evaluation_and_make_it_when_resumed(tmp_path: Path) -> None:
    """Nearly all of the time is evaluation here, so the signal most likely comes in one; what is asked holds anywhere."""
    words = ["--model", "llama", "--model.n-layers", "1", "--train.steps", "100000", "--train.micro-batch-size", "1"]
    words += ["--data.eval", "0.2", "--eval.every-steps", "1", "--eval.samples", "0", "--nproc-per-node", "2"]
    process = start([*words, "--output", "run"], tmp_path)
    wait_for_steps(process)
    time.sleep(0.5)
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 75, errors
    step = json.loads((find(tmp_path / "run") / "manifest.json").read_text())["step"]
    resumed = start(["--resume", "run", "--train.steps", str(step + 1), "--nproc-per-node", "2"], tmp_path)
    _, errors = resumed.communicate(timeout=500)
    assert resumed.returncode == 0, errors
    records = figures(tmp_path / "run")
    assert [record["step"] for record in records] == list(range(1, step + 2))
    assert all("eval_loss" in record for record in records)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_signal_stops_at_once(processes: int, tmp_path: Path) -> None:
    """In the middle of a step that takes some seconds."""
    words = ["--model", "llama", "--train.steps", "100000", "--nproc-per-node", str(processes), "--output", "run"]
    words += ["--train.micro-batch-size", "32", "--train.sequence-len", "512"]
    process = start(words, tmp_path)
    wait_for_steps(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode in (130, -signal.SIGINT)
    assert time.monotonic() - began < 3
    assert not (tmp_path / "run" / "checkpoints" / "latest").exists()


def test_rows_without_a_number_are_skipped_and_named_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def spoilt(step: int) -> Callable[..., Any]:
        honest, calls = TokenObjective.loss, 0

        def loss(self: Any, hidden: Any, head: Any, batch: Any) -> Any:
            nonlocal calls
            calls += hidden.requires_grad
            sums = honest(self, hidden, head, batch)
            bad = hidden.requires_grad and calls == step
            return type(sums)(sums.loss_sum * (math.nan if bad else 1.0), sums.token_count, sums.metrics)

        return loss

    with monkeypatch.context() as patch:
        patch.setattr(TokenObjective, "loss", spoilt(3))
        assert main([*BASE, "--output", str(tmp_path / "stop")]) == 1
        assert "step 3: loss nan" in capfd.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(TokenObjective, "loss", spoilt(3))
        assert main([*BASE, "--output", str(tmp_path / "skip"), "--train.on-nonfinite", "skip"]) == 0
    assert "warning: skipped step 3: loss nan" in capfd.readouterr().err
    records = MetricsFile(tmp_path / "skip" / "metrics.jsonl").read()
    assert [record["loss"] is None for record in records] == [False, False, True, False, False, False]
    assert all(math.isfinite(record["eval_loss"]) for record in records if "eval_loss" in record)
    verify(find(tmp_path / "skip"))
