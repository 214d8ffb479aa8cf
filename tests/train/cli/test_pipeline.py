"""A run in a pipeline, from the command line to what comes after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mt_tools.cli.eval import main as evaluate
from mt_tools.cli.generate import main as generate
from mt_train.cli.train import main
from mt_train.tracking.metrics import MetricsFile

WORDS = ["--model", "llama", "--train.steps", "20", "--train.global-batch-size", "8", "--train.sequence-len", "64"]
WORDS += ["--data.eval", "4", "--eval.every-steps", "10"]
EXAMPLE = Path(__file__).parents[3] / "examples/hello_plugin/src"


def start(words: list[str], output: Path) -> str:
    line = [sys.executable, "-m", "mt_train.cli.train", *words, "--output", str(output), "--nproc-per-node", "2"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def records(run: Path) -> list[dict[str, Any]]:
    return list(MetricsFile(run / "metrics.jsonl").read())


def test_a_run_in_stages_prints_the_losses_of_one_process_and_leaves_a_whole_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*WORDS, "--output", str(one)]) == 0
    text = start([*WORDS, "--train.micro-batch-size", "2", "--parallel.pipeline", "2"], two)
    assert "2 stages × 1 rank × 2 rows × 4 micro-batches = 8 rows a step, ZeRO 1, fp32" in text
    assert "stage 0    model.embed_tokens … model.layers.1" in text
    assert "parameters 783,488 float32" in text, "those of all stages"
    for first, second in zip(records(one), records(two), strict=True):
        for key in first.keys() & {"loss", "eval_loss"}:
            assert f"{first[key]:.4f}" == f"{second[key]:.4f}", (first["step"], key)
    capsys.readouterr()
    generated = []
    for run in (one, two):
        assert generate(["--run", str(run), "--prompt", "The ", "--greedy"]) == 0
        generated.append(capsys.readouterr().out)
        assert evaluate(["--run", str(run)]) == 0
        capsys.readouterr()
    assert generated[0] == generated[1]
    assert main(["--resume", str(two), "--train.steps", "21", "--parallel.pipeline", "1"]) == 0
    assert records(two)[-1]["step"] == 21
    started_again = [*["--train.steps", "22", "--parallel.pipeline", "2"]]
    line = [sys.executable, "-m", "mt_train.cli.train", "--resume", str(two), *started_again, "--nproc-per-node", "2"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    assert records(two)[-1]["step"] == 22


def test_a_model_that_does_not_declare_pipelines_is_refused_by_name(tmp_path: Path) -> None:
    installed = tmp_path / "mt_plugin_hello-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mt-plugin-hello\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[mt_core.plugins]\nhello = mt_plugin_hello.plugin\n")
    path = os.pathsep.join([str(tmp_path), str(EXAMPLE), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = ["--model", "gated-conv", "--parallel.pipeline", "2", "--nproc-per-node", "2", "--output", "none"]
    line = [sys.executable, "-m", "mt_train.cli.train", *words]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 2, done.stderr
    assert "gated-conv does not support pipeline" in done.stderr
