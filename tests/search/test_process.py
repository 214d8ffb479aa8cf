"""Trials that are real runs, each in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mt_plugin_search import search
from mt_plugin_search.command import main
from mt_train import train

TINY = """
model: {name: kit-tiny, n_layers: 1}
train: {steps: 40, micro_batch_size: 2, sequence_len: 32}
data: {eval: 4, read_rows: 12}
eval: {every_steps: 20, samples: 0}
checkpoint: {every_steps: 20}
"""
WORDS = ["--config", "run.yaml", "--sampler", "grid", "--prune-after", "2", "--search.optimizer.lr"]


def start(words: list[str], output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mt_plugin_search.command", *words]
    with output.open("ab") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, process_group=0)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 200
    while not (path.is_file() and path.stat().st_size):
        assert process.poll() is None, "the search ended before"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def figures(run: Path) -> list[Any]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["eval_loss"] for record in records if "eval_loss" in record]


@pytest.mark.parametrize(
    ("number", "rates"),
    [(signal.SIGINT, "1e-9,1e-2"), pytest.param(signal.SIGKILL, "1e-9,1e-2,1e-8", marks=pytest.mark.soak)],
)
def test_a_search_that_was_stopped_goes_on_and_its_best_is_truly_the_best(
    number: signal.Signals, rates: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A third trial is as bad as the first: worse than the median at step 20, so it ends there."""
    Path("run.yaml").write_text(TINY)
    process = start([*WORDS, rates, "--output", "a"], Path("said"))
    wait_for(Path("a/trial-002/metrics.jsonl"), process)
    process.send_signal(number)
    assert process.wait(timeout=500) == (75 if number == signal.SIGINT else -number)
    first = os.stat("a/trial-001/metrics.jsonl")
    wait_until_free(Path("a/trial-002"))
    assert main(["--resume", "a", "--json"]) == 0
    out = capsys.readouterr().out
    assert os.stat("a/trial-001/metrics.jsonl").st_mtime_ns == first.st_mtime_ns, "finished trials are not repeated"
    about = json.loads(out)
    assert [trial["state"] for trial in about["trials"]] == ["complete", "complete", "pruned"][: rates.count(",") + 1]
    assert [trial["steps"] for trial in about["trials"]] == [40, 40, 20][: rates.count(",") + 1]
    last = [figures(Path("a") / trial["run"])[-1] for trial in about["trials"][:2]]
    assert about["best"] == 1 + last.index(min(last)) == 2
    assert about["trials"][1]["value"] == last[1]
    assert train("a/best.yaml", output="again").eval_loss == last[1]


def wait_until_free(run: Path) -> None:
    """A trial whose search was killed saves and ends by itself."""
    deadline = time.monotonic() + 100
    while (run / ".lock").is_file() and (run / ".lock").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.soak
def test_trials_in_several_processes_end_early_together() -> None:
    Path("run.yaml").write_text(TINY)
    space = {"optimizer.lr": [1e-2, 1e-9]}
    found = search("run.yaml", space, output="a", sampler="grid", prune_after=1, nproc_per_node=2)
    assert [trial.state for trial in found.trials] == ["complete", "pruned"]
    assert found.best is not None
    assert found.best.number == 1
