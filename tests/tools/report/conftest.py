"""Folders of runs as mt-train leaves them, and a headless Chromium."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium, started_chromium

CONFIG = {
    "model": {"name": "llama", "dim": 128},
    "optimizer": {"name": "adamw", "lr": 0.003},
    "train": {"steps": 60, "seed": 0},
}
ABOUT = {
    "schema": 1,
    "core": "0.1.0",
    "started": "2026-03-01T10:00:00+00:00",
    "model": "llama tiny from mt-plugin-llama 0.1.0",
    "parameters": [
        {"dtype": "float32", "trained": True, "count": 1000, "bytes": 4000},
        {"dtype": "float32", "trained": False, "count": 3000, "bytes": 12000},
    ],
    "data": {
        "train": {
            "rows_read": 76,
            "rows_kept": 71,
            "rows_dropped": {"empty": 4, "too long": 1},
            "rows_split": 70,
            "samples": 1853,
            "tokens_total": 464152,
            "tokens_trained": 462300,
        },
        "held_out": None,
    },
    "example": "Question: two and two? «four» Question: and three? «seven»",
    "layout": "1 rank × 8 rows of 256 tokens",
    "device": "CPU, 2 threads a process",
    "attention": "sdpa (auto)",
    "total_steps": 60,
    "sequence_len": 256,
}


def figures(step: int, rate: float = 0.1) -> dict[str, Any]:
    """A record like those of a run: the loss falls and wobbles."""
    record = {
        "step": step,
        "loss": 1.5 + 4 * math.exp(-rate * step) + 0.1 * math.sin(step),
        "lr": 0.003 * min(1.0, step / 10),
        "grad_norm": 1 + 1 / step,
        "tokens": step * 2000,
        "tokens_per_second": 10000.0 + step,
        "memory_gib": 0.45,
        "data_wait_seconds": 0.0006,
    }
    return record | ({"eval_loss": 1.6 + 4 * math.exp(-rate * step)} if step % 20 == 0 else {})


MakeRun = Callable[..., Path]


@pytest.fixture
def about() -> dict[str, Any]:
    return copy.deepcopy(ABOUT)


@pytest.fixture(scope="session")
def record() -> Callable[..., dict[str, Any]]:
    return figures


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return lambda name="run", **parts: write_run(tmp_path / name, **parts)


def write_run(
    folder: Path,
    *,
    records: list[dict[str, Any]] | None = None,
    config: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    samples: list[dict[str, Any]] | None = None,
    evaluations: list[dict[str, Any] | str] | None = None,
    rollouts: list[dict[str, Any] | str] | None = None,
    alarms: list[dict[str, Any] | str] | None = None,
    completed: bool = True,
) -> Path:
    """A run's folder; YAML reads JSON, so the config is written as that."""
    folder.mkdir(parents=True)
    records = [figures(step) for step in range(1, 61)] if records is None else records
    (folder / "run.yaml").write_text(json.dumps(config or CONFIG))
    (folder / "plugins.lock.json").write_text(json.dumps({"core": "0.1.0", "plugins": {"mt-plugin-llama": "0.1.0"}}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if about is not None:
        (folder / "about.json").write_text(json.dumps(about))
    if samples is not None:
        (folder / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    for name, rows in (("evaluations", evaluations), ("rollouts", rollouts), ("alarms", alarms)):
        if rows is not None:
            lines = [each if isinstance(each, str) else json.dumps(each) for each in rows]
            (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if completed:
        (folder / "completed").touch()
    return folder


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """Started once, since it is slow."""
    with started_chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser
