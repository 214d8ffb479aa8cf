"""What a resumed run may change, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mt_core.cli.generate import main as generate
from mt_core.cli.train import main
from mt_core.tracking.metrics import MetricsFile

BASE = ["--model", "llama", "--train.steps", "2", "--train.micro-batch-size", "2", "--eval.every-steps", "none"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    assert main([*BASE, "--model.n-layers", "1", "--output", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def test_a_checkpoint_of_another_model_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = run.parent / "other"
    assert main([*BASE, "--model.n-layers", "2", "--output", str(other)]) == 0
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    capsys.readouterr()
    assert main(["--resume", str(run), "--train.steps", "4"]) == 1
    error = capsys.readouterr().err
    assert "the checkpoint belongs to another model" in error
    assert "model.layers.1.mlp.up_proj.weight" in error
    assert generate(["--run", str(run), "--prompt", "x"]) == 1
    assert "another model" in capsys.readouterr().err


def test_a_resumed_run_keeps_what_defines_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--resume", str(run), "--optimizer.lr", "0.5", "--train.seed", "9", "--train.steps", "4"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "2 faults" in error
    assert "optimizer.lr: is 0.5, and 0.003 in the run" in error
    assert "train.seed: is 9, and 0 in the run" in error


def test_a_resumed_run_may_be_longer_and_laid_out_otherwise(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--train.steps", "4", "--train.micro-batch-size", "1", "--parallel.zero-stage", "2"]
    assert main(["--resume", str(run), *words]) == 0
    captured = capsys.readouterr()
    assert "4 steps instead of 2" in captured.err
    assert "1 rows × 2 micro-batches = 2 rows a step, ZeRO 2" in captured.out, "the rows of a step stay"
    assert main(["--resume", str(run), "--train.steps", "6", "--train.global-batch-size", "4"]) == 2
    assert "train.global-batch-size: is 4, and 2 in the run" in capsys.readouterr().err
    assert [record["step"] for record in MetricsFile(run / "metrics.jsonl").read()] == [1, 2, 3, 4]


def test_a_folder_without_its_run_file_is_no_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "run.yaml").unlink()
    assert main(["--resume", str(run)]) == 1
    assert "has no run.yaml" in capsys.readouterr().err
