"""Figures of blocks, counts of a step and kept parameters, on every layout: all cases in one launch of one process and one of two."""

from __future__ import annotations

from collections.abc import Callable
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
}
SHARED: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in range(4)},
    "zero1, split and recomputed": {"stage": 1, "micro": 2, "recompute": True},
    "sequence": {"stage": 1, "sequence": 2, "recompute": True},
    "pipeline": {"stage": "auto", "pipeline": 2, "micro": 2},
    "pipeline, recomputed": {"stage": "auto", "pipeline": 2, "micro": 2, "recompute": True},
    "resumed": {"stage": 1, "do": "resume"},
    "resumed from stages at zero 3": {
        "stage": "auto",
        "pipeline": 2,
        "do": "resume",
        "then": {"stage": 3, "pipeline": 1},
    },
    "lora": {"stage": 1, "adapter": "lora"},
    "lora, resumed": {"stage": 1, "adapter": "lora", "do": "resume"},
    **{f"bf16, zero{stage}": {"stage": stage, "dtype": "bf16", "family": SLOW} for stage in (1, 3)},
    "bf16, offloaded": {"stage": 3, "dtype": "bf16", "offload": "parameters", "family": SLOW},
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


@pytest.fixture(scope="module")
def results(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    return one | two


PLAIN = ("split", "recompute", *(name for name in SHARED if "bf16" not in name and "lora" not in name))
HALF = [name for name in SHARED if "bf16" in name]


@pytest.mark.parametrize("layout", PLAIN)
def test_counts_of_a_step_balance_alike_on_every_layout(results: dict[str, Any], layout: str) -> None:
    """Bit for bit, whatever the micro-batches, ranks, stages and recomputation; also where a run was stopped and goes on elsewhere."""
    assert results[layout]["values"] == results["whole"]["values"]


@pytest.mark.parametrize("name", [*ALONE, *SHARED])
def test_every_trained_token_is_counted_once(results: dict[str, Any], name: str) -> None:
    """By each block; not again where it is recomputed, where rows run twice, or where a loss is only evaluated."""
    if name in ("collision", "still"):
        pytest.skip("trains nothing, or switches the model's own step off")
    found = results[name]
    seen = [value for key, (value, *_) in found["values"].items() if key.endswith("seen")]
    assert seen == [found["tokens"]] * 2


@pytest.mark.parametrize("layout", PLAIN)
def test_figures_of_blocks_are_those_of_one_process(results: dict[str, Any], layout: str) -> None:
    """Counts to the last bit, sums of fractions to 1e-6; beside the losses, which do not hang on them."""
    assert len(results[layout]["figures"]) == 3
    for ours, theirs in zip(results[layout]["figures"], results["whole"]["figures"], strict=True):
        for name in ("first_expert_0", "first_expert_1", "busiest"):
            assert ours[name] == theirs[name]
        assert ours["score"] == pytest.approx(theirs["score"], rel=1e-6)
    assert results[layout]["losses"] == pytest.approx(results["whole"]["losses"], rel=1e-5)


def test_figures_are_of_training_alone(results: dict[str, Any]) -> None:
    assert results["whole"]["eval_keys"] == ["eval_loss"]
    assert {"score", "first_expert_0", "first_expert_1", "trained_share", "busiest"} == results["pipeline"]["figures"][
        0
    ].keys()


def test_balancing_changes_what_is_trained(results: dict[str, Any]) -> None:
    """Else equal values would show nothing."""
    assert results["still"]["losses"][0] == results["whole"]["losses"][0]
    assert results["still"]["losses"][1:] != results["whole"]["losses"][1:]
    assert set(results["still"]["values"]["model.layers.0.balance"]) == {0.5}


@pytest.mark.parametrize("name", [*HALF, "bf16"])
def test_kept_parameters_are_fp32_in_a_run_of_half_precision(results: dict[str, Any], name: str) -> None:
    """Steps of 0.001 from 0.5, and counts above 256, of which bf16 would hold none; resumed, too."""
    found = results[name]
    assert set(found["dtypes"].values()) == {"torch.float32"}
    for value in found["values"]["model.layers.0.balance"] + found["values"]["model.layers.1.balance"]:
        steps = (value - 0.5) / 0.001
        assert abs(steps) < 4.01
        assert steps == pytest.approx(round(steps), abs=1e-3)
    assert len(set(found["values"]["model.layers.0.balance"])) > 1


def test_a_run_in_half_precision_resumes_with_the_bits_of_its_kept_parameters(results: dict[str, Any]) -> None:
    assert results["bf16, resumed"]["state"] == results["bf16, zero3"]["state"]


def test_a_resumed_run_goes_on_bit_for_bit(results: dict[str, Any]) -> None:
    for whole, parts in (("zero1", "resumed"), ("lora", "lora, resumed")):
        assert results[whole]["losses"] == results[parts]["losses"]
        assert results[whole]["state"] == results[parts]["state"]
        assert results[whole]["figures"] == results[parts]["figures"]


@pytest.mark.parametrize("name", ["whole", "zero3", "pipeline", "lora"])
def test_no_adapter_trains_what_is_kept(results: dict[str, Any], name: str) -> None:
    assert results[name]["trained"] == []


def test_a_figure_with_a_name_of_the_record_is_refused(results: dict[str, Any]) -> None:
    assert "a block reports the figure 'lr', which the step's record has already" in results["collision"]["error"]
