"""Masters of our own compute what DeepSpeed's optimizer for bf16 does: many cases in one launch of one process, and in one of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

WORKER = "train/engine/layout_worker.py"
Launch = Callable[..., dict[str, Any]]

OWN: dict[str, Any] = {"stage": 1, "dtype": "bf16"}
THEIRS = {**OWN, "masters": "deepspeed"}
ALIKE: dict[str, dict[str, Any]] = {
    "whole": {"clip": None},
    "several": {"clip": None, "micro": 2},
    "tied": {"clip": None, "model": {"tie_embeddings": True}},
    "dropout": {"clip": None, "model": {"dropout": 0.1}},
    "frozen": {"clip": None, "adapter": "lora"},
    "lion": {"clip": None, "optimizer": {"name": "lion", "lr": 1e-3}},
    "muon": {"clip": None, "optimizer": {"name": "muon", "lr": 1e-2}},
    "average": {"clip": None, "optimizer": {"name": "schedule-free-adamw", "lr": 1e-2}},
    "sequence": {"clip": None, "sequence": 2},
}
CASES = {f"own-{name}": {**OWN, **case} for name, case in ALIKE.items()}
CASES |= {f"theirs-{name}": {**THEIRS, **case} for name, case in ALIKE.items()}
CASES |= {"own-clipped": OWN, "theirs-clipped": THEIRS, "inf": {**OWN, "do": "inf"}}
MOVES = {"to-theirs": (OWN, {"masters": "deepspeed"}), "from-theirs": (THEIRS, {"masters": "auto"})}
MOVES |= {f"to-{stage}": (OWN, {"stage": stage}) for stage in (2, 3)}
MOVES |= {f"from-{stage}": ({**OWN, "stage": stage}, {"stage": 1}) for stage in (2, 3)}
CASES |= {name: {**first, "do": "resume", "clip": None, "then": then} for name, (first, then) in MOVES.items()}
CASES |= {
    f"resume-{name}": {**OWN, **ALIKE[name], "do": "resume"} for name in ("dropout", "several", "muon", "average")
}


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), CASES)


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), CASES)


@pytest.fixture(scope="module", params=["one", "two"])
def results(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", ALIKE)
def test_every_bit_is_that_of_deepspeeds_optimizer(results: dict[str, Any], name: str) -> None:
    own, theirs = results[f"own-{name}"], results[f"theirs-{name}"]
    assert (own["losses"], own["eval"], own["weights"]) == (theirs["losses"], theirs["eval"], theirs["weights"])
    assert torch.tensor(own["norms"]).allclose(torch.tensor(theirs["norms"]), rtol=1e-6)
