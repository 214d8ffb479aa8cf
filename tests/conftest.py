"""Rows to train on, launches of several processes that train them, and how far families are from their references."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

pytest_plugins = ["mt_core.testing.fixtures", "pytester"]

PARITY_TABLE = "MT_PARITY_TABLE"
"""Environment variable: a file for the largest differences that the parity tests of all families have seen."""

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "then",
    "it",
    "rests",
    "under",
    "an",
    "old",
    "tree",
    "until",
    "night",
    "falls",
]


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of very different lengths, some nearly all prompt."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = []
    for number in range(40):
        prompt, response = WORDS[: 1 + number % 5], WORDS[number % 3 : number % 3 + 1 + (number * 7) % 5]
        text = " ".join(prompt + response)
        lines.append(json.dumps({"prompt": " ".join(prompt), "response": " ".join(response), "text": text}))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="session")
def launch(rows: Path) -> Callable[..., dict[str, Any]]:
    """``launch(worker, world, folder, cases)``: a worker (its path below tests) in so many processes, and what it wrote."""

    def launched(worker: str, world: int, folder: Path, cases: dict[str, Any], timeout: int = 280) -> dict[str, Any]:
        out, script = folder / f"results-{world}.json", Path(__file__).parent / worker
        command = [sys.executable, str(script), json.dumps(cases), str(rows), str(out)]
        base = {**os.environ, "WORLD_SIZE": str(world), "MT_STORE": str(folder / f"store-{world}")}
        base |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes = [
            subprocess.Popen(
                command,
                env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(world)
        ]
        said = [[text.decode()[-3000:] for text in process.communicate(timeout=timeout)] for process in processes]
        assert all(process.returncode == 0 for process in processes), "\n".join(errors for _, errors in said)
        assert not any(output for output, _ in said), f"DeepSpeed printed: {said}"
        return json.loads(out.read_text())

    return launched


@pytest.fixture(scope="session")
def distance() -> Callable[[Tensor, Tensor], float]:
    return lambda ours, theirs: ((ours - theirs).norm() / theirs.norm()).item()


@pytest.fixture(scope="session")
def record() -> Iterator[Callable[[str, str, str, float, float], None]]:
    """``record(family, model, input, logits, gradients)``: one line of the parity table."""
    lines: list[str] = []

    def add(family: str, model: str, given: str, logits: float, gradients: float) -> None:
        generation, feature = model.split(", ", 1)
        lines.append(f"| {family} | {generation} | {feature} | {given} | {logits:.1e} | {gradients:.1e} |")

    yield add
    if PARITY_TABLE in os.environ and lines:
        head = ["| family | generation | feature | input | logits | gradients |", "|---|---|---|---|---|---|"]
        Path(os.environ[PARITY_TABLE]).write_text("\n".join([*head, *lines]) + "\n")
