"""Signals and failures while the processes of a run are started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mt_train.cli import launch
from mt_train.cli.train import main

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that the launcher has started: each takes a while, and would run for a minute."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(argv: Any, rank: int, count: int, folder: Path) -> subprocess.Popen[bytes]:
        time.sleep(0.3)
        processes.append(subprocess.Popen(SLEEP, process_group=0))
        return processes[-1]

    monkeypatch.setattr(launch, "_start", start)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_a_signal_while_processes_start_reaches_each_of_them_once(started: list[subprocess.Popen[bytes]]) -> None:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    assert launch.launch([], {}, 3) != 0
    assert [process.returncode for process in started] == [-signal.SIGTERM] * 3


def test_processes_are_ended_where_a_later_one_cannot_be_started(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = launch._start

    def fail_last(argv: Any, rank: int, count: int, folder: Path) -> subprocess.Popen[bytes]:
        if rank == 2:
            raise OSError(11, "Resource temporarily unavailable")
        return begin(argv, rank, count, folder)

    monkeypatch.setattr(launch, "_start", fail_last)
    with pytest.raises(OSError, match="temporarily unavailable"):
        launch.launch([], {}, 3)
    assert all(process.poll() is not None for process in started)
    assert len(started) == 2


def test_a_run_of_started_processes_says_which_key_came_from_which_source(
    tmp_path: Path, needs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("mt-plugin-llama")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    size = "{name: llama, n_layers: 1, dim: 32, n_heads: 2, n_kv_heads: 1}"
    rows = "data: {read_rows: 8}\neval: {every_steps: none, samples: 0}\n"
    Path("mine.yaml").write_text(f"model: {size}\ntrain: {{steps: 1, sequence_len: 32}}\n{rows}")
    words = ["--config", "mine.yaml", "--train.micro-batch-size", "1", "--restart", "1", "--output", "run"]
    assert main(words) == 0
    origins = json.loads(Path("run/about.json").read_text())["origins"]
    assert origins["train.steps"] == "mine.yaml", "and not the scratch file that the processes read"
    assert origins["train.micro_batch_size"] == "command line"
