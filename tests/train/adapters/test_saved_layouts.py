"""Saved adapters on every layout, merged under a run's own and trained on from: one launch of one process, and one of two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

WORKER = "train/engine/layout_worker.py"
Launch = Callable[..., dict[str, Any]]
WIDTHS = {"self_attn.q_proj": (32, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48)}
"""Outputs and inputs of projections of the worker's model."""
OWN = {"name": "lora", "rank": 4, "alpha": 32}
PIPELINE = {"stage": "auto", "pipeline": 2, "micro": 2}
LAYOUTS: dict[str, dict[str, Any]] = {"zero0": {"stage": 0}, "zero3": {"stage": 3}, "pipeline": PIPELINE}


def write(folder: Path, *projections: str, rank: int) -> str:
    """A LoRA as peft writes it, with values that nobody has trained."""
    draw = torch.Generator().manual_seed(rank)
    tensors = {}
    for block in range(2):
        for name in projections:
            place, (outputs, inputs) = f"base_model.model.model.layers.{block}.{name}", WIDTHS[name]
            tensors[f"{place}.lora_A.weight"] = torch.randn(rank, inputs, generator=draw) * 0.2
            tensors[f"{place}.lora_B.weight"] = torch.randn(outputs, rank, generator=draw) * 0.2
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = [name.rpartition(".")[2] for name in projections]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("adapters")
    first = write(folder / "first", "self_attn.q_proj", "mlp.up_proj", rank=3)
    second = write(folder / "second", "self_attn.q_proj", "mlp.down_proj", rank=4)
    ways: dict[str, dict[str, Any]] = {
        "none": {"adapter": OWN},
        "merged": {"adapter": OWN, "model": {"adapters": [first, second]}},
        "on": {"adapter": {"weights": first}},
        "both": {"adapter": {"weights": second}, "model": {"adapters": [first]}},
    }
    found = {f"{way}-{layout}": {**case, **LAYOUTS[layout]} for way, case in ways.items() for layout in LAYOUTS}
    quantized = {"quantizer": {"name": "nf4"}, "stage": 1}
    found |= {f"{way}-quantized": {**case, **quantized} for way, case in ways.items()}
    return found | {f"both-{layout}-resume": {**found[f"both-{layout}"], "do": "resume"} for layout in LAYOUTS}


@pytest.fixture(scope="module")
def one(launch: Launch, cases: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    wanted = {name: case for name, case in cases.items() if name.endswith(("zero0", "quantized"))}
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), wanted)


@pytest.fixture(scope="module")
def two(launch: Launch, cases: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), cases)


def far(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest relative difference of losses and of gradient norms."""
    pairs = [*zip(one["losses"], other["losses"], strict=True), *zip(one["norms"], other["norms"], strict=True)]
    return max(abs(a - b) / abs(a) for a, b in pairs)


@pytest.mark.parametrize("layout", [*LAYOUTS, "quantized"])
@pytest.mark.parametrize("way", ["merged", "on", "both"])
def test_every_layout_trains_as_one_process_does(
    one: dict[str, Any], two: dict[str, Any], way: str, layout: str
) -> None:
    alone = "quantized" if layout == "quantized" else "zero0"
    reference, without = one[f"{way}-{alone}"], one[f"none-{alone}"]
    assert far(reference, two[f"{way}-{layout}"]) < 2e-6
    assert abs(reference["losses"][0] - without["losses"][0]) > 1e-4, "it begins as another model"
    assert reference["losses"][-1] < reference["losses"][0] - 1e-4, "something was learned"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_equals_one_that_was_not_stopped_to_the_bit(two: dict[str, Any], layout: str) -> None:
    whole, resumed = two[f"both-{layout}"], two[f"both-{layout}-resume"]
    assert whole["losses"] == resumed["losses"]
    assert whole["state"] == resumed["state"]


def test_merged_weights_are_frozen(one: dict[str, Any]) -> None:
    merged, without = one["merged-zero0"]["values"], one["none-zero0"]["values"]
    base = [name for name in merged if "lora_" not in name]
    changed = {name for name in base if merged[name] != without[name]}
    assert changed == {f"model.layers.{block}.{name}.weight" for block in range(2) for name in WIDTHS}
    trained_over, only = one["both-zero0"]["values"], "model.layers.0.mlp.up_proj.weight"
    assert trained_over[only] == merged[only], "the first alone has changed it, whatever is trained over it"
