"""Types that differ most, on two ranks: each layout gives what one process does. Mistral runs through all of tests/families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.families.test_families import close
from tests.huggingface import tiny_models

TYPES = ("apertus", "glm4_moe", "qwen3_moe")
"""Tied embeddings, scaled and capped logits, windows, learned positions that are a layer of their own, fused projections."""
PACKED = {"objective": "pretrain"}
ALONE = {
    "whole": {"stage": 0},
    "packed": {"stage": 0, **PACKED},
    "recompute-packed": {"stage": 0, "recompute": True, **PACKED},
}
SHARED: dict[str, dict[str, Any]] = {
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "zero3-packed": {"stage": 3, **PACKED},
    "sequence-packed": {"stage": 3, "sequence": 2, **PACKED},
    "pipeline": {"stage": "auto", "pipeline": 2},
    "pipeline-packed": {"stage": "auto", "pipeline": 2, "recompute": True, **PACKED},
}

STATEFUL = "falcon_h1"
"""A type whose rows are padded: attention, convolutions and recurrences in each block, which returns a tuple."""
PADDED = ("zero3", "pipeline")

Launch = Callable[..., dict[str, Any]]


def has(kind: str, layout: str) -> bool:
    """Return whether a type is tried on a layout."""
    return layout in ("whole", *PADDED) if kind == STATEFUL else layout != "zero3"


CASES = [(kind, layout) for kind in (*TYPES, STATEFUL) for layout in SHARED if has(kind, layout)]


def of_all_types(layouts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kinds = (*TYPES, STATEFUL)
    slots = {kind: {"name": "huggingface", "max_seq_len": 512, "config": tiny_models.content(kind)} for kind in kinds}
    tried = [(kind, name) for kind in kinds for name in layouts if has(kind, name)]
    return {f"{kind}: {name}": {**layouts[name], "family": slots[kind]} for kind, name in tried}


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch("families/family_worker.py", 1, tmp_path_factory.mktemp("one"), of_all_types(ALONE))


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch("families/family_worker.py", 2, tmp_path_factory.mktemp("two"), of_all_types(SHARED))


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_two_processes_equal_one(one: dict[str, Any], two: dict[str, Any], kind: str, layout: str) -> None:
    """Losses, norms and evaluations to 1e-5 of each, and the same tokens."""
    alone, shared = one[f"{kind}: {'packed' if 'packed' in layout else 'whole'}"], two[f"{kind}: {layout}"]
    assert alone["tokens"] == shared["tokens"]
    for key in ("losses", "norms", "eval"):
        assert close(alone[key], shared[key], 1e-5), (key, alone[key], shared[key])


@pytest.mark.parametrize("kind", TYPES)
def test_recomputing_activations_changes_nothing(one: dict[str, Any], kind: str) -> None:
    assert one[f"{kind}: packed"]["losses"] == one[f"{kind}: recompute-packed"]["losses"]
