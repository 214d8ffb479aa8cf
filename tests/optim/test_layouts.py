"""Every optimizer on layouts that it declares: trained, saved, resumed to the bit, in one launch of two processes.

One of each form on every layout, the others on a layout or two; all of them at night, in a second launch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sampled_cases import Cases, SampledCases

from mt_plugin_optim.optimizers import OPTIMIZERS

pytestmark = pytest.mark.needs("mt-plugin-llama")  # the worker's model
WORKER = str(Path(__file__).with_name("optim_worker.py"))
SMALL: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "lr": 0.1},
    "rmsprop": {"momentum": 0.5},
    "lomo": {"lr": 0.1},
    "galore": {"rank": 8, "update_steps": 2, "lr": 1e-2},
    "galore-adafactor": {"rank": 8, "update_steps": 2, "lr": 1e-2, "beta1": 0.5},
    "galore-8bit": {"rank": 8, "update_steps": 2, "lr": 1e-2, "min_8bit_size": 64},
    "galore-per-layer": {"rank": 8, "update_steps": 2, "lr": 1e-2},
    **{f"torchao-adamw-{bits}": {"min_size": 512, "block_size": 32} for bits in ("8bit", "4bit", "fp8")},
    "apollo": {"rank": 8, "update_steps": 2, "lr": 1e-2},
    "soap": {"update_steps": 1},
    "badam": {"switch_steps": 1},
    "lisa": {"switch_steps": 1, "active": 1},
    "adamw-8bit": {"min_8bit_size": 512},
    "schedule-free-adamw": {"rates": {"*embed*": {"scale": 0.3}}},
}
"""Options with which three steps of a small model show what is special. The rest has one rate for all."""

EXTRA = {
    **dict.fromkeys(("adamw-8bit", "galore-8bit"), "bitsandbytes"),
    **{f"torchao-adamw-{bits}": "torchao" for bits in ("8bit", "4bit", "fp8")},
}
"""What some optimizers need, and not every machine has."""

GROUPED = {"no_decay": ["*embed*"], "rates": {"*down_proj*": {"value": 0.003}}, "layer_decay": 0.9}
"""What divides parameters into many groups, beside the plain two."""


def case(name: str, layout: str) -> dict[str, Any]:
    """A layout as the worker takes it."""
    special = {"pipeline": {"stage": "auto", "pipeline": 2}, "offload": {"stage": 2, "offload": "optimizer"}}
    parallel = special.get(layout) or {"stage": int(layout[-1])}
    return {"do": "halves", "optimizer": {"name": name, **SMALL.get(name, {})}, **parallel}


TESTED = {
    f"{component.name} {layout}": case(component.name, layout)
    for component in OPTIMIZERS
    if "cpu" in component.devices and find_spec(EXTRA.get(component.name, "torch"))
    for layout in sorted(component.layouts)
}
FORMS = ("adam", "muon")
"""An optimizer of torch's own by numbers, and directions of whole matrices."""


def sample_layouts(tested: list[str]) -> set[str]:
    """CI's share: everything of ``FORMS``, and of the others the whole parameters and one more layout, each layout in turn."""
    more: dict[str, list[str]] = {}
    for name in tested:
        if not name.endswith("zero0"):
            more.setdefault(name.partition(" ")[0], []).append(name)
    dealt = {names[number % len(names)] for number, names in enumerate(more.values())}
    return {name for name in tested if name.endswith("zero0") or name.partition(" ")[0] in FORMS} | dealt


SAMPLED = sample_layouts([*TESTED])
CASES = {name: case for name, case in TESTED.items() if name in SAMPLED} | {
    "adam to another": {**case("adam", "zero0"), "then": {"stage": 3}},
    "lion to another": {**case("lion", "zero3"), "then": {"stage": 0}},
    **{
        f"{name} offload 3": {**case(name, "zero3"), "offload": "parameters"}
        for name in ("lion", "schedule-free-adamw")
    },
    "sgd offload 1": {**case("sgd", "zero1"), "offload": "optimizer"},
    "lion offload 1 bf16": {**case("lion", "zero1"), "offload": "optimizer", "dtype": "bf16"},
    "muon to another": {**case("muon", "zero3"), "then": {"stage": 0}},
    "galore to another": {**case("galore", "zero0"), "then": {"stage": "auto", "pipeline": 2}},
    "galore-adafactor to another": {**case("galore-adafactor", "zero3"), "then": {"stage": "auto", "pipeline": 2}},
    "adafactor not relative": {
        **case("adafactor", "zero0"),
        "optimizer": {"name": "adafactor", "lr": 1e-3, "relative": False},
    },
    "muon bf16": {**case("muon", "zero1"), "dtype": "bf16"},
    "muon bf16 pipeline": {**case("muon", "pipeline"), "dtype": "bf16"},
    "galore bf16 3": {**case("galore", "zero3"), "dtype": "bf16"},
    "schedule-free-adamw to another": {**case("schedule-free-adamw", "zero3"), "then": {"stage": 2}},
    "adamw bf16": {**case("adamw", "zero1"), "optimizer": {"name": "adamw", **GROUPED}, "dtype": "bf16"},
    **{
        f"{name} bf16": {**case(name, "zero0"), "dtype": "bf16"}
        for name in ("sparse-adam", "adafactor", "badam", *EXTRA)
        if f"{name} zero0" in TESTED and name != "galore-8bit"
    },
    **{
        f"adamw grouped {stage}": {**case("adamw", f"zero{stage}"), "optimizer": {"name": "adamw", **GROUPED}}
        for stage in range(4)
    },
    "schedule-free-adamw bf16": {**case("schedule-free-adamw", "zero1"), "dtype": "bf16"},
    "schedule-free-adamw bf16 3": {**case("schedule-free-adamw", "zero3"), "dtype": "bf16"},
}
INFINITE = {
    f"{name} {layout} inf": {**case(name, layout), "do": "inf"}
    for name, layouts in {
        "muon": ("zero0", "zero1", "zero3", "pipeline"),
        "lomo": ("zero0",),
        "adalomo": ("zero0",),
    }.items()
    for layout in layouts
}
FUSED_CASE = {**case("lomo", "zero0"), "do": "gradients", "model": {"dropout": 0.1}}
FUSED = {
    "gradients": FUSED_CASE,
    "gradients at once": {**FUSED_CASE, "optimizer": {"name": "sgd", "lr": 0.1}},
}
REST = {name: case for name, case in TESTED.items() if name not in CASES}
SAME = [name for name in CASES if not name.endswith("another")]
AT_NIGHT = [pytest.param(name, marks=pytest.mark.night) for name in REST]
NEAR = {"soap": 1e-4, "galore-8bit": 1e-4}
"""How far apart losses may be, where it is more than 1e-6: a basis of what one gradient has nothing of is arbitrary, and 8 bits may
round to either side."""


@pytest.fixture(scope="module")
def case_results(launch: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> SampledCases:
    def run(cases: Cases) -> dict[str, Any]:
        return launch(WORKER, 2, tmp_path_factory.mktemp("optim"), cases, timeout=1500)

    return SampledCases(run, CASES | INFINITE | FUSED, REST)


@pytest.mark.parametrize("name", [*SAME, *AT_NIGHT])
def test_a_resumed_run_is_the_one_that_was_not_stopped(case_results: SampledCases, name: str) -> None:
    """To the bit: losses, evaluations, weights and the optimizer's state of every rank."""
    result = case_results[name]
    assert result["again"] == result["losses"][1:]
    assert result["eval_again"] == result["eval"]
    assert result["equal"]


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("another")])
def test_another_layout_takes_over(case_results: SampledCases, name: str) -> None:
    result = case_results[name]
    assert result["again"] == pytest.approx(result["losses"][1:], rel=1e-6)
    assert result["eval_again"] == pytest.approx(result["eval"], rel=1e-6)


@pytest.mark.parametrize(
    "name", [*(name for name in TESTED if name in CASES and not name.endswith("zero0")), *AT_NIGHT]
)
def test_flat_pieces_train_as_whole_parameters_do(case_results: SampledCases, name: str) -> None:
    optimizer = name.partition(" ")[0]
    whole, pieces, near = case_results[f"{optimizer} zero0"], case_results[name], NEAR.get(optimizer, 1e-6)
    assert pieces["losses"] == pytest.approx(whole["losses"], rel=near)
    assert pieces["norms"] == pytest.approx(whole["norms"], rel=100 * near), "of gradients, not of directions"
    assert pieces["eval"] == pytest.approx(whole["eval"], rel=near)


@pytest.mark.parametrize("name", INFINITE)
def test_an_infinite_gradient_changes_nothing_that_is_kept(case_results: SampledCases, name: str) -> None:
    assert case_results[name].items() >= {"finite": False, "applied": False, "unchanged": True}.items()


def test_a_fused_update_is_that_of_the_whole_step_and_holds_one_gradient(case_results: SampledCases) -> None:
    """Beside plain descent of the same rate: the same norm, losses and weights, with dropout."""
    fused, plain = case_results["gradients"], case_results["gradients at once"]
    assert fused["held"] == 1
    assert plain["held"] > 10
    assert fused["norms"] == pytest.approx(plain["norms"], rel=1e-5)
    assert fused["losses"] == pytest.approx(plain["losses"], rel=1e-6)


def test_every_optimizer_changes_the_loss(case_results: SampledCases) -> None:
    fused, whole = (case_results[f"{name} zero0"]["losses"] for name in ("galore-per-layer", "galore"))
    assert fused == pytest.approx(whole, rel=1e-6)
    still = [
        name for name in TESTED if name in CASES and case_results[name]["eval"][1] == case_results[name]["eval"][0]
    ]
    assert not still
    names = [name for name in TESTED if name.endswith("zero0") and "per-layer" not in name]
    assert len({str(case_results[name]["losses"]) for name in names}) == len(names), "no two of them are the same"
