"""Small runs with callbacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_train import train
from mt_train.checkpoint.store import CheckpointStore, verify
from mt_train.tracking.metrics import MetricsFile

sys.path.insert(0, str(Path(__file__).parent))  # for the workers, which run in processes of their own too

CLOCKS = ("tokens_per_second", "memory_gib", "data_wait_seconds", "seconds", "mfu", "teraflops", "resident_gib")


class Runs:
    """Trains the tiny model in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def train(self, name: str, *, steps: int = 6, **sections: Any) -> Path:
        raw: dict[str, Any] = {
            "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1, "dropout": 0.1},
            "train": {"steps": steps, "micro_batch_size": 2, "sequence_len": 64},
            "data": {"eval": 4, "read_rows": 40, "truncation": "right"},
            "eval": {"every_steps": 2, "samples": 0},
            "checkpoint": {"every_steps": 3, "keep_last": 9},
        }
        for key, values in sections.items():
            raw[key] = {**raw.get(key, {}), **values} if isinstance(values, dict) else values
        train(raw, output=self.folder / name)
        return self.folder / name

    def resume(self, run: Path, checkpoint: str) -> Path:
        """The same run, gone on with from an earlier checkpoint."""
        train({}, resume=run / "checkpoints" / checkpoint)
        return run

    def records(self, run: Path) -> list[dict[str, Any]]:
        """Figures without what clocks say."""
        return [
            {key: value for key, value in record.items() if key not in CLOCKS}
            for record in MetricsFile(run / "metrics.jsonl").read()
        ]

    def content(self, run: Path) -> dict[str, str]:
        """SHA-256 of every file of the last checkpoint."""
        _, path = max(CheckpointStore(run).list())
        return {name: entry["sha256"] for name, entry in verify(path)["files"].items()}

    def state(self, run: Path) -> dict[str, Any]:
        """What its callbacks keep in the last checkpoint beside tensors."""
        _, path = max(CheckpointStore(run).list())
        return verify(path)["callbacks"]


@pytest.fixture
def runs(tmp_path: Path, needs: Callable[[str], None]) -> Runs:
    needs("mt-plugin-llama")
    return Runs(tmp_path)


@pytest.fixture
def machines(tmp_path: Path, needs: Callable[[str], None]) -> Callable[..., Path]:
    """``machines(world, cases)``: runs of machines_worker.py in so many processes; returns their folder."""
    needs("mt-plugin-llama")

    def launched(world: int, cases: dict[str, Any]) -> Path:
        worker = [sys.executable, str(Path(__file__).with_name("machines_worker.py")), str(tmp_path), json.dumps(cases)]
        base = {**os.environ, "WORLD_SIZE": str(world), "LOCAL_SIZE": str(world), "MT_STORE": str(tmp_path / "store")}
        base |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        processes = [
            subprocess.Popen(
                worker,
                env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for rank in range(world)
        ]
        try:
            ends = [process.communicate(timeout=500)[1].decode() for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert all(process.returncode == 0 for process in processes), "\n".join(ends)
        return tmp_path

    return launched


@pytest.fixture
def said() -> Callable[[Path], list[str]]:
    """``said(run)``: the texts of its events."""
    return lambda run: [json.loads(line)["text"] for line in (run / "events.jsonl").read_text().splitlines()]
