"""Figures of blocks, counts of a step and kept parameters, on every layout: all cases in one launch of one process and one of two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORKER = "families/counting_worker.py"
FAMILY = {"name": "counting"}
SLOW = {**FAMILY, "rate": 0.001}
ALONE: dict[str, dict[str, Any]] = {
    "whole": {"stage": 0},
    "split": {"stage": 0, "micro": 2},
    "recompute": {"stage": 0, "micro": 2, "recompute": True},
    "twice through the rows": {"stage": 0, "optimizer": {"name": "lomo", "lr": 1e-2}},
    "still": {"stage": 0, "family": {**FAMILY, "rate": 0.0}},
    "bf16": {"stage": 1, "dtype": "bf16", "family": SLOW},
    "collision": {"do": "refused", "stage": 0, "family": {**FAMILY, "figure": "lr"}, "steps": 1},
    "enable": {"do": "refused", "stage": 0, "more": {"adapter": "lora"}, "steps": 1},
}
SHARED: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in range(4)},
    "zero1, split and recomputed": {"stage": 1, "micro": 2, "recompute": True},
    "sequence": {"stage": 1, "sequence": 2, "recompute": True},
    "pipeline": {"stage": "auto", "pipeline": 2, "micro": 2},
    "pipeline, recomputed": {"stage": "auto", "pipeline": 2, "micro": 2, "recompute": True},
    "resumed": {"stage": 1, "do": "resume"},
    "resumed from stages at zero 3": {"stage": "auto", "pipeline": 2, "do": "resume", "then": {"stage": 3, "pipeline": 1}},
    "lora": {"stage": 1, "adapter": "lora"},
    "lora, resumed": {"stage": 1, "adapter": "lora", "do": "resume"},
    **{f"bf16, zero{stage}": {"stage": stage, "dtype": "bf16", "family": SLOW} for stage in (1, 3)},
    "bf16, pipeline": {"stage": "auto", "pipeline": 2, "dtype": "bf16", "family": SLOW},
    "bf16, resumed": {"stage": 3, "dtype": "bf16", "do": "resume", "family": SLOW},
}
Launch = Callable[..., dict[str, Any]]


def of_the_family(cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {"family": FAMILY, **case} for name, case in cases.items()}


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), of_the_family(ALONE))


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), of_the_family(SHARED))


def test_smoke(one: dict[str, Any], two: dict[str, Any]) -> None:
    import json

    for each in (one, two):
        for name, case in each.items():
            print(name, json.dumps({k: v for k, v in case.items() if k not in ("weights", "state", "copies")})[:900])
