"""Small runs with callbacks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_train import train
from mt_train.checkpoint.store import CheckpointStore, verify
from mt_train.tracking.metrics import MetricsFile

sys.path.insert(0, str(Path(__file__).parent))  # for the workers, which run in processes of their own too

CLOCKS = ("tokens_per_second", "memory_gib", "data_wait_seconds", "mfu", "teraflops", "resident_gib")


class Runs:
    """Trains the tiny model in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def train(self, name: str, *, steps: int = 6, **sections: Any) -> Path:
        raw: dict[str, Any] = {
            "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1, "dropout": 0.1},
            "train": {"steps": steps, "micro_batch_size": 2, "sequence_len": 64},
            "data": {"eval": 4, "read_rows": 12},
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
