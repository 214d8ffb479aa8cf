"""A stranger's model: built as a wheel, installed beside the core, trained by name on one process and on two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mt_core.tracking.metrics import MetricsFile

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("stranger")
    pip = [sys.executable, "-m", "pip", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder)]
    subprocess.run([*build, str(ROOT / "examples/hello_plugin")], check=True, timeout=120)
    wheel = next(folder.glob("*.whl"))
    target = folder / "site"
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)], check=True, timeout=60
    )
    return {**os.environ, "PYTHONPATH": str(target)}


def train(folder: Path, environment: dict[str, str], *words: str) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "mt_core.cli.train", "--model", "gated-conv", *words, "--output", str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    return MetricsFile(folder / "metrics.jsonl").read()


def test_its_loss_falls_in_fifty_steps(environment: dict[str, str], tmp_path: Path) -> None:
    records = train(tmp_path / "run", environment, "--train.steps", "50")
    assert records[-1]["loss"] < records[0]["loss"] - 0.3
    command = [sys.executable, "-m", "mt_core.cli.generate", "--run", str(tmp_path / "run"), "--prompt", "The "]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_two_processes_equal_one(environment: dict[str, str], tmp_path: Path) -> None:
    words = ["--train.steps", "4", "--train.global-batch-size", "16", "--eval.every-steps", "2"]
    one = train(tmp_path / "one", environment, *words)
    two = train(tmp_path / "two", environment, *words, "--nproc-per-node", "2", "--parallel.zero-stage", "3")
    for key in ("loss", "grad_norm", "tokens"):
        assert [record[key] for record in one] == pytest.approx([record[key] for record in two], rel=1e-5), key
