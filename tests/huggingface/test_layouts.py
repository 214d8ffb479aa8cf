"""Types that differ most, on two ranks: each layout gives what one process does. Mistral runs through all of tests/families.

``-m soak`` tries all types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.families.test_families import close
from tests.huggingface import tiny_models

from mt_plugin_huggingface.types import known_types

TYPES = ("bloom", "deepseek_v3", "gemma2", "gpt2", "sparse")
"""Attention of its own on padded rows; latent attention and a bias for the choice of experts; tied embeddings,
scaled and capped logits, windows; learned positions that are a layer of their own; experts of which most get no token of a rank.
Sinks, and experts with biases, are in tests/families."""
SPARSE = {"model_type": "qwen3_moe", "num_experts": 32, "num_experts_per_tok": 1}
PACKED = {"objective": "pretrain"}
LORA = {"adapter": {"name": "lora", "rank": 2}}
ADAPTERS = {"gpt2": {"adapter": {"name": "delta-lora", "start_steps": 1}}}
"""Type → an adapter in the place of LoRA: projections that are stored transposed are rewritten in each step."""
ALONE = {
    "whole": {"stage": 0},
    "packed": {"stage": 0, **PACKED},
    "lora": {"stage": 0, **LORA},
    "recompute-packed": {"stage": 0, "recompute": True, **PACKED},
    "recompute": {"stage": 0, "recompute": True},
}
SHARED: dict[str, dict[str, Any]] = {
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "zero3-lora": {"stage": 3, **LORA},
    "zero3-packed": {"stage": 3, **PACKED},
    "sequence-packed": {"stage": 3, "sequence": 2, **PACKED},
    "expert": {"stage": 1, "expert": 2},
    "pipeline": {"stage": "auto", "pipeline": 2},
    "pipeline-packed": {"stage": "auto", "pipeline": 2, "recompute": True, **PACKED},
}
NEEDS = {
    "zero3": "zero3",
    "packed": "packing",
    "sequence": "sequence",
    "sequence-": "zero3",
    "lora": "adapters",
    "pipeline": "pipeline",
    "expert": "expert",
}
"""Part of a layout's name → the limit of a type that excludes it."""
EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}
"""Keys of the number of experts."""

Launch = Callable[..., dict[str, Any]]


def content(kind: str) -> dict[str, Any]:
    """A ``config.json``, in which a token's place in its row does not count yet where it ever does: such rows are not divided."""
    if kind == "sparse":
        return tiny_models.content("qwen3_moe", **SPARSE)
    key = known_types()[kind].counts_rows
    return tiny_models.content(kind, **({key: 8192} if key else {}))


def layouts_of(kind: str, layouts: Iterable[str], *, soak: bool = False) -> list[str]:
    """Layouts that a type has; in CI without those that others cover: packed rows stand for padded ones where a type has both."""
    found = content(kind)
    limits = known_types()[found["model_type"]].limits
    lacks = {*limits, *(() if EXPERTS & found.keys() and "adapters" not in limits else ("expert",))}
    can = [name for name in layouts if not any(need in lacks for part, need in NEEDS.items() if part in name)]
    if soak:
        return can
    is_adapted = kind in ("sparse", *ADAPTERS)
    covered = {"zero1", "zero2", "recompute"} if "packing" in limits else {"zero2", "zero3", "recompute"}
    covered |= {"expert"}  # tests/train/engine/test_experts.py
    covered |= {"pipeline"} if "packing" not in limits else set()
    covered |= set() if is_adapted else {"lora", "zero3-lora"}
    return [name for name in can if name not in covered]


def cases_of(
    kinds: Iterable[str], layouts: dict[str, dict[str, Any]], *, soak: bool = False
) -> dict[str, dict[str, Any]]:
    slots = {kind: {"name": "huggingface", "max_seq_len": 512, "config": content(kind)} for kind in kinds}
    return {
        f"{kind}: {name}": {**layouts[name], **(ADAPTERS.get(kind, {}) if "lora" in name else {}), "family": slot}
        for kind, slot in slots.items()
        for name in layouts_of(kind, layouts, soak=soak)
    }


def alone_of(layout: str) -> str:
    """The case of one process that a layout of two is compared with."""
    return next((name for name in ("packed", "lora") if name in layout), "whole")


def compare(alone: dict[str, Any], shared: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Losses, norms and evaluations to 1e-5 of each, and the same tokens."""
    assert alone["tokens"] == shared["tokens"]
    for key in ("losses", "norms", "eval"):
        assert close(alone[key], shared[key], tolerance), (key, alone[key], shared[key])


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch("families/family_worker.py", 1, tmp_path_factory.mktemp("one"), cases_of(TYPES, ALONE))


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch("families/family_worker.py", 2, tmp_path_factory.mktemp("two"), cases_of(TYPES, SHARED))


@pytest.mark.parametrize(("kind", "layout"), [(kind, each) for kind in TYPES for each in layouts_of(kind, SHARED)])
def test_two_processes_equal_one(one: dict[str, Any], two: dict[str, Any], kind: str, layout: str) -> None:
    compare(one[f"{kind}: {alone_of(layout)}"], two[f"{kind}: {layout}"])


@pytest.mark.parametrize("kind", [kind for kind in TYPES if "recompute-packed" in layouts_of(kind, ALONE)])
def test_recomputing_activations_changes_nothing(one: dict[str, Any], kind: str) -> None:
    assert one[f"{kind}: packed"]["losses"] == one[f"{kind}: recompute-packed"]["losses"]


ALL = sorted(known_types())
TOGETHER = 6
"""Types that share two launches."""


@pytest.mark.soak
@pytest.mark.parametrize("kinds", [ALL[at : at + TOGETHER] for at in range(0, len(ALL), TOGETHER)], ids="-".join)
def test_every_type_on_every_layout(kinds: list[str], launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> None:
    worker = "families/family_worker.py"
    alone = launch(worker, 1, tmp_path_factory.mktemp("one"), cases_of(kinds, ALONE, soak=True))
    shared = launch(worker, 2, tmp_path_factory.mktemp("two"), cases_of(kinds, SHARED, soak=True))
    wrong = []
    for case, result in shared.items():
        kind, _, layout = case.partition(": ")
        try:
            compare(alone[f"{kind}: {alone_of(layout)}"], result, 1e-4)  # where updates have made rounding larger
        except AssertionError as error:
            wrong.append(f"{case}: {error}")
    for case, result in alone.items():
        plain = case.replace("recompute-packed", "packed").replace("recompute", "whole")
        if result["losses"] != alone[plain]["losses"]:
            wrong.append(f"{case}: {result['losses']}, not {alone[plain]['losses']}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
@pytest.mark.parametrize("kinds", [ALL[at : at + TOGETHER] for at in range(0, len(ALL), TOGETHER)], ids="-".join)
def test_every_type_learns_in_bf16_what_it_does_in_fp32(
    kinds: list[str], launch: Launch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At ZeRO 3, where a model is built in bf16, and what files have and nothing trains is in fp32."""
    stages = {kind: {"stage": 2 if "zero3" in known_types()[kind].limits else 3} for kind in kinds}
    families = {kind: {"name": "huggingface", "max_seq_len": 512, "config": content(kind)} for kind in kinds}
    cases = {
        f"{kind}: {dtype}": {**stages[kind], "dtype": dtype, "family": families[kind]}
        for kind in kinds
        for dtype in ("fp32", "bf16")
    }
    found = launch("families/family_worker.py", 2, tmp_path_factory.mktemp("two"), cases)
    for kind in kinds:
        losses, expected = found[f"{kind}: bf16"]["losses"], found[f"{kind}: fp32"]["losses"]
        assert losses[0] == pytest.approx(expected[0], rel=1e-2), kind
        assert losses[-1] == pytest.approx(expected[-1], rel=0.1), kind
