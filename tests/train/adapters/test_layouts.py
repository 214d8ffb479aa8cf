"""What adapters may do, on every layout: one launch of one process, and one of two. tests/adapters has each adapter's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

WORKER = "train/adapters/adapter_worker.py"
Launch = Callable[..., dict[str, Any]]
LORA = {"name": "lora", "rank": 4, "alpha": 32}
LAST = {**LORA, "targets": ["*.layers.1.*"]}
"""Only the last block: the first stage of a pipeline trains nothing."""
PIPELINE = {"stage": "auto", "pipeline": 2, "micro": 2}
CASES: dict[str, dict[str, Any]] = {
    "lora-zero0": {"stage": 0, "adapter": LORA},
    "lora-recompute": {"stage": 0, "adapter": LORA, "recompute": True},
    "lora-sequence": {"stage": 1, "adapter": LORA, "sequence": 2},
    "lora-pipeline": {**PIPELINE, "adapter": LORA},
    **{f"last-{stage}": {"stage": stage, "adapter": LAST} for stage in (0, 3)},
    "last-pipeline": {**PIPELINE, "adapter": LAST, "do": "resume"},
    "last-pipeline-to-3": {**PIPELINE, "adapter": LAST, "do": "resume", "then": {"stage": 3, "pipeline": 1}},
    "last-3-to-pipeline": {"stage": 3, "micro": 2, "adapter": LAST, "do": "resume", "then": PIPELINE},
    **{f"resetting-zero{stage}": {"stage": stage, "adapter": LORA, "own": "resetting"} for stage in range(4)},
    "resetting-pipeline": {**PIPELINE, "adapter": LORA, "own": "resetting"},
    **{f"sharing-zero{stage}": {"stage": stage, "adapter": "lora", "own": "sharing"} for stage in (0, 1, 3)},
    "sharing-pipeline": {**PIPELINE, "adapter": "lora", "own": "sharing"},
}
RESUMED: dict[str, dict[str, Any]] = {
    "lora-dropout": {"stage": 2, "adapter": {**LORA, "dropout": 0.2}},
    "lora-bf16": {"stage": 3, "adapter": {**LORA, "fp32": True}, "dtype": "bf16"},
    "lora-pipeline-dropout": {**PIPELINE, "adapter": {**LORA, "dropout": 0.2}},
    "lora-trained-only": {"stage": 2, "adapter": LORA, "checkpoint": {"trainable_only": True}},
    "resetting-trained-only": {
        "stage": 1,
        "adapter": LORA,
        "own": "resetting",
        "checkpoint": {"trainable_only": True},
    },
    "sharing": {"stage": 1, "adapter": "lora", "own": "sharing"},
}
BOTH = {f"{name}-{do}": {**case, "do": do} for name, case in RESUMED.items() for do in ("run", "resume")}
MERGED = {"merged": {"stage": 0, "adapter": LORA, "do": "merge"}}
SMALL = {"rank": 4, "alpha": 8.0}
PROBED: dict[str, dict[str, Any]] = {
    "eva": SMALL,
    "lora-ga": SMALL,
    "lora-da": {**SMALL, "gamma": 1.0, "damping": 0.03},
    "lora-one": {**SMALL, "gamma": 1.0},
    "lora-sb": {**SMALL, "step": 0.01},
    "gora": {**SMALL, "gamma": 1.0, "min_rank": 2},
    "ralora": {**SMALL, "rank": 2},
}
"""Adapters that look at rows before training, in portions of one matrix or two."""
BEGUN = {
    name: {"stage": 1, "adapter": {"name": name, "probe_gb": 1e-5, **each}, "do": "begin"}
    for name, each in PROBED.items()
}
SEQUENCE = {f"{name}-sequence": {**BEGUN[name], "sequence": 2} for name in ("eva", "lora-ga", "lora-da")}
PLANNED = {
    f"{name}-{do}": {"stage": 2, "adapter": {"name": name, **PROBED[name]}, "do": do}
    for name in ("eva", "lora-ga", "ralora")
    for do in ("run", "resume")
}
GROUPS = {"lora": "lora-zero0", "last": "last-0", "resetting": "resetting-zero0", "sharing": "sharing-zero0"}
"""Cases that compute the same, and the one that they are compared with."""


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), CASES | MERGED | BEGUN)


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), CASES | BOTH | BEGUN | SEQUENCE | PLANNED)


def far(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest relative difference of losses and of gradient norms."""
    pairs = [*zip(one["losses"], other["losses"], strict=True), *zip(one["norms"], other["norms"], strict=True)]
    return max(abs(a - b) / abs(a) for a, b in pairs)


@pytest.mark.parametrize("case", CASES)
def test_every_layout_trains_as_one_process_does(one: dict[str, Any], two: dict[str, Any], case: str) -> None:
    """1e-6: rounding of sums of fp32 in another order."""
    reference = one[GROUPS[case.partition("-")[0]]]
    assert far(reference, one[case]) < 1e-6
    assert far(reference, two[case]) < 2e-6
    assert reference["losses"][-1] < reference["losses"][0] - 1e-4, "something was learned"


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_equals_one_that_was_not_stopped_to_the_bit(two: dict[str, Any], case: str) -> None:
    whole, resumed = two[f"{case}-run"], two[f"{case}-resume"]
    assert whole["losses"] == resumed["losses"]
    assert whole["state"] == resumed["state"]


@pytest.mark.parametrize("case", [*BEGUN, *SEQUENCE])
def test_what_is_found_on_rows_is_the_same_on_one_process_and_on_two(
    one: dict[str, Any], two: dict[str, Any], case: str
) -> None:
    """Ranks and blocks are the shapes. 1e-4: sums in fp32 differ by 1e-7, and neighbouring singular values by a few %."""
    reference, other = one[case.removesuffix("-sequence")], two[case]
    assert {name: shape for name, (shape, _) in other.items()} == {
        name: shape for name, (shape, _) in reference.items()
    }
    distances = {name: relative(values, reference[name][1]) for name, (_, values) in other.items()}
    assert max(distances.values()) < 1e-4, distances


def relative(values: list[float], reference: list[float]) -> float:
    """Their distance over the length of the reference."""
    return math.dist(values, reference) / max(math.hypot(*reference), 1e-30)


@pytest.mark.parametrize("name", ["eva", "lora-ga", "ralora"])
def test_a_resumed_run_has_the_ranks_and_values_of_its_checkpoint_and_looks_at_no_row(
    two: dict[str, Any], name: str
) -> None:
    """The worker's probe fails where a checkpoint is given."""
    whole, resumed = two[f"{name}-run"], two[f"{name}-resume"]
    assert whole["losses"] == resumed["losses"]
    assert whole["state"] == resumed["state"]


def test_only_the_adapter_is_trained_unless_it_rewrites_the_base(one: dict[str, Any]) -> None:
    """Against the last block's adapter, which leaves all others at their first values."""
    lora, last, resetting = (one[name]["values"] for name in ("lora-zero0", "last-0", "resetting-zero0"))
    frozen = [name for name in lora if "lora_" not in name]
    assert frozen
    assert all(lora[name] == last[name] for name in frozen)
    assert lora["model.layers.1.mlp.up_proj.lora_A"] != last["model.layers.1.mlp.up_proj.lora_A"]
    assert [name for name in frozen if resetting[name] != lora[name]] == [
        name for name in frozen if name.endswith("_proj.weight")
    ]


def test_a_merged_model_gives_the_same_output_and_unmerging_gives_the_bits_back(one: dict[str, Any]) -> None:
    """1e-5: W + BA is rounded once more than W x + B A x."""
    assert one["merged"]["distance"] < 1e-5
    assert one["merged"]["equal"]
    assert one["merged"]["bits"]
