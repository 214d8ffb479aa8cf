"""A teacher, rows, and launches of the worker that learns from both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mt_train import train

WORKER = "distillation/layout_worker.py"
Cases = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory, needs: Callable[[str], None]) -> Path:
    """A run of a small Llama over bytes, which knows a little of the demo corpus."""
    needs("mt-plugin-llama")
    run = tmp_path_factory.mktemp("teacher") / "run"
    raw = {
        "model": {"name": "llama", "dim": 48, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 64},
        "data": {"eval": None},
        "train": {"steps": 8, "sequence_len": 32, "micro_batch_size": 4, "global_batch_size": 4, "seed": 11},
        "optimizer": {"name": "adamw", "lr": 2e-2},
        "log": {"console_level": "error"},
    }
    train(raw, output=run)
    return run


@pytest.fixture(scope="session")
def launch_students(
    launch: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, teacher: Path
) -> Callable[[int, Cases], dict[str, Any]]:
    """``launch_students(world, cases)``: what came of each case, in so many processes. Of 15 rows 4 are held out, so that the second
    step has 3 rows, all of which the first of two ranks gets."""
    rows = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "rests"]
    content = [
        {"prompt": " ".join(words[: 1 + n % 4]) + " ", "response": " ".join(words[n % 5 : n % 5 + 1 + (5 * n) % 6])}
        for n in range(15)
    ]
    rows.write_text("".join(json.dumps(row) + "\n" for row in content))

    def launched(world: int, cases: Cases) -> dict[str, Any]:
        whole = {name: {**case, "rows": str(rows), "teacher": str(teacher)} for name, case in cases.items()}
        return launch(WORKER, world, tmp_path_factory.mktemp("out"), whole)

    return launched
