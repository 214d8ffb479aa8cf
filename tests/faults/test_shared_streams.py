"""Ranks that encode a stream in shares: one fails, dies, hangs, waits or is slow, and the others neither hang nor learn other rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_SECONDS = 8
CONFIG = """
model: {name: llama, n_layers: 1}
dataset: faulty-stream
objective: pretrain
train: {steps: 12, micro_batch_size: 1, global_batch_size: 2, sequence_len: 64}
data: {eval: none, shuffle_buffer: 5}
eval: {samples: 0}
parallel: {timeout_seconds: TIMEOUT}
""".replace("TIMEOUT", str(TIMEOUT_SECONDS))
TRAIN = [sys.executable, "-m", "mt_train.cli.train"]


@dataclass(frozen=True)
class Ending:
    """How a command ended, and how long that took since its last step was shown."""

    code: int
    errors: str
    seconds: float


Train = Callable[..., Ending]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """``train(deed, when)``: two processes in ``tmp_path``, which get a SIGTERM once the file ``when`` is there."""
    installed = tmp_path / "faulty-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[mt_core.plugins]\nfaulty = faulty_stream\n")
    shutil.copy(Path(__file__).with_name("faulty_stream.py"), tmp_path)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(deed: str, *, words: list[str] | None = None, when: str = "") -> Ending:
        monkeypatch.setenv("FAULTY_DEED", deed)
        (tmp_path / "config.yaml").write_text(CONFIG)
        command = [*TRAIN, "--nproc-per-node", "2", *(words or ["--config", "config.yaml", "--output", "run"])]
        with (tmp_path / "errors.txt").open("wb") as errors:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors, text=True)
        while when and not (tmp_path / when).exists():
            assert process.poll() is None, (tmp_path / "errors.txt").read_text()
            time.sleep(0.05)
        if when:
            time.sleep(2.0)  # the other rank has its rows by now, and waits for this one's share
            process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        last = time.monotonic()
        for line in process.stdout:
            last = time.monotonic() if line.startswith("step ") else last
        code = process.wait(timeout=300)
        return Ending(code, (tmp_path / "errors.txt").read_text(), time.monotonic() - last)

    return run


def losses(run: Path) -> list[Any]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


LOST = "lost the connection to another process, which ended first"
LATE = "waited --parallel.timeout-seconds for another process, which did not answer"
FAULTS = {
    "the source fails": ("1=raise@20", "error: row-20 is out of reach", "row-20 is out of reach"),
    "code fails": (
        "1=encode@20",
        "error: rank 1 ended with code 1: unexpected KeyError: 'no such token'",
        "rank 1 could not encode its share of dataset 'faulty-stream' (KeyError: 'no such token')",
    ),
    "it is killed": ("1=kill@20", "error: rank 1 was killed by SIGKILL", LOST),
    "it hangs": ("1=hang@20", "error: rank 1 does not answer, and the others have given up waiting for it", LATE),
}
"""Faults of rank 1 at row 20: what it does, what the command says, and what is in the log of rank 0, which waits for it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_becomes_of_a_rank_the_others_end_soon_and_it_is_named(
    fault: str, train: Train, tmp_path: Path
) -> None:
    deed, said, heard = FAULTS[fault]
    ended = train(deed)
    assert ended.code == 1
    assert ended.seconds < TIMEOUT_SECONDS + 30
    assert said in ended.errors
    assert ended.errors.count("error:") == 1, "told once"
    assert "Traceback" not in ended.errors
    assert heard in (tmp_path / "run/logs/rank-0.log").read_text()


def test_a_signal_while_a_block_is_exchanged_saves_and_the_run_goes_on_as_if_a_rank_had_been_slow(
    train: Train, tmp_path: Path
) -> None:
    stopped = train("1=wait@20", when="waiting")
    assert stopped.code == 75, stopped.errors
    assert stopped.seconds < TIMEOUT_SECONDS + 30
    assert "stopped by SIGTERM after step" in stopped.errors
    assert "Traceback" not in stopped.errors
    assert 0 < len(losses(tmp_path / "run")) < 12
    assert train("", words=["--resume", "run"]).code == 0
    slow = train("1=slow@10", words=["--config", "config.yaml", "--output", "slow"])
    assert slow.code == 0, slow.errors
    assert losses(tmp_path / "slow") == losses(tmp_path / "run")
    assert len(losses(tmp_path / "run")) == 12
