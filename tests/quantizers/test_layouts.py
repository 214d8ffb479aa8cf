"""Adapters over quantized weights on every layout that is declared: one launch of one process, and one of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mt_core import ConfigError
from mt_core.plugins.host import PluginHost
from mt_train.engine.plan import make_plan
from mt_train.plugins.resolve import resolve

LLAMA = pytest.mark.needs("mt-plugin-llama")  # the worker's model
WORKER = "train/adapters/adapter_worker.py"
Launch = Callable[..., dict[str, Any]]
LORA = {"name": "lora", "rank": 4, "alpha": 32}
CASES: dict[str, dict[str, Any]] = {
    **{f"nf4-zero{stage}": {"stage": stage, "quantizer": "nf4", "adapter": LORA} for stage in range(4)},
    "nf4-sequence": {"stage": 1, "quantizer": "nf4", "adapter": LORA, "sequence": 2},
    "nf4-recompute": {"stage": 0, "quantizer": "nf4", "adapter": LORA, "recompute": True},
    "int8-zero0": {"stage": 0, "quantizer": "int8", "adapter": LORA},
    "int8-zero3": {"stage": 3, "quantizer": "int8", "adapter": LORA},
    "fp4-zero0": {"stage": 0, "quantizer": "fp4", "adapter": LORA},
    "fp4-zero2": {"stage": 2, "quantizer": "fp4", "adapter": LORA},
}
RESUMED: dict[str, dict[str, Any]] = {
    "dropout": {"stage": 2, "quantizer": "nf4", "adapter": {**LORA, "dropout": 0.2}},
    "bf16": {"stage": 1, "quantizer": "nf4", "adapter": LORA, "dtype": "bf16"},
    "stage3": {"stage": 3, "quantizer": "int8", "adapter": LORA},
}
BOTH = {f"{name}-{do}": {**case, "do": do} for name, case in RESUMED.items() for do in ("run", "resume")}


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), CASES | {"dense-zero0": {"stage": 0, "adapter": LORA}})


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), CASES | BOTH)


@LLAMA
@pytest.mark.parametrize("case", CASES)
def test_every_layout_trains_as_one_process_does(one: dict[str, Any], two: dict[str, Any], case: str) -> None:
    """2e-6: rounding of sums of fp32 in another order."""
    reference = one[f"{case.partition('-')[0]}-zero0"]
    for found in (one[case], two[case]):
        assert found["losses"] == pytest.approx(reference["losses"], rel=2e-6)
        assert found["norms"] == pytest.approx(reference["norms"], rel=2e-6)


@LLAMA
def test_quantized_weights_give_another_loss_than_dense_ones_and_still_learn(one: dict[str, Any]) -> None:
    for name in ("nf4", "fp4", "int8"):
        losses = one[f"{name}-zero0"]["losses"]
        assert losses[0] != one["dense-zero0"]["losses"][0]
        assert losses[-1] < losses[0] - 0.05
    nf4, int8, dense = (one[f"{name}-zero0"]["losses"][0] for name in ("nf4", "int8", "dense"))
    assert abs(int8 - dense) < abs(nf4 - dense), "eight bits are nearer than four"


@LLAMA
@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_quantizes_again_and_equals_one_that_was_not_stopped_to_the_bit(
    two: dict[str, Any], case: str
) -> None:
    assert two[f"{case}-run"]["losses"] == two[f"{case}-resume"]["losses"]
    assert two[f"{case}-run"]["state"] == two[f"{case}-resume"]["state"]


@pytest.mark.usefixtures("kit_model")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": "full"}, "quantizer nf4 conflicts with adapter:full. Choose another in the place of one"),
        ({"parallel": {"pipeline": 2}}, "nf4 does not support pipeline"),
        ({"quantizer": {"name": "nf4", "block_size": 100}}, "quantizer.block-size"),
        ({"quantizer": "nf5"}, "no quantizer named 'nf5'. Did you mean 'nf4'"),
    ],
)
def test_what_cannot_be_is_refused_on_paper(changes: dict[str, Any], message: str) -> None:
    raw = {"model": "kit-tiny", "quantizer": "nf4", "adapter": "lora", "train": {"steps": 1}, **changes}

    def planned() -> None:
        resolved = resolve(raw, PluginHost.discover())
        make_plan(resolved.config, world=2, device="cpu", offers=resolved.offers.values())

    with pytest.raises(ConfigError, match=message):
        planned()
