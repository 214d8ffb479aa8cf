"""What the plugin offers, and that the page says what is declared; test_conformance.py has what holds for any plugin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for support_table, which is also a command

from support_table import PAGE, page

from mt_core.errors import ConfigError
from mt_core.plugins.host import PluginHost
from mt_plugin_optim import plugin
from mt_train.config.run import RunConfig
from mt_train.engine.plan import make_plan
from mt_train.planning.moments import state_bytes
from mt_train.plugins.resolve import resolve

pytestmark = pytest.mark.usefixtures("kit_model")


def test_the_page_has_the_table_of_what_is_declared() -> None:
    assert PAGE.read_text() == page(), "run python tests/optim/support_table.py"


@pytest.mark.parametrize("component", plugin.mt_optimizers(), ids=lambda each: each.name)
def test_every_optimizer_says_where_it_comes_from(component: Any) -> None:
    assert component.source.startswith("https://")


def plan_of(optimizer: str, **parallel: Any) -> tuple[RunConfig, Any]:
    resolved = resolve({"model": "kit-tiny", "optimizer": optimizer, "parallel": parallel}, PluginHost.discover())
    return resolved.config, resolved.offers.values()


@pytest.mark.parametrize("component", plugin.mt_optimizers(), ids=lambda each: each.name)
def test_a_layout_that_is_not_declared_is_refused_on_paper_with_the_nearest_that_works(component: Any) -> None:
    device = sorted(component.devices)[0]
    for stage in range(4):
        config, offers = plan_of(component.name, zero_stage=stage)
        config = config.model_copy(update={"train": config.train.model_copy(update={"dtype": "fp32"})})
        if f"zero{stage}" in component.layouts:
            assert make_plan(config, world=2, device=device, offers=offers).zero_stage == stage
        else:
            with pytest.raises(ConfigError, match=rf"{component.name} .*zero.*(?s:.*)--parallel\.zero-stage (0|auto)"):
                make_plan(config, world=2, device=device, offers=offers)


def test_a_gradient_transform_is_refused_in_fp16() -> None:
    config, offers = plan_of("muon")
    config = config.model_copy(update={"train": config.train.model_copy(update={"dtype": "fp16"})})
    with pytest.raises(ConfigError, match=r"muon makes directions of gradients(?s:.*)--train\.dtype bf16"):
        make_plan(config, world=1, device="cuda", offers=offers)


def test_planned_state_is_what_galore_with_adafactor_keeps_inside_and_outside_of_blocks() -> None:
    """A projection and squares of its shape in blocks; rows and columns elsewhere; nothing in the optimizer that ZeRO divides."""
    shapes = {"embed.weight": (60, 16), "model.layers.0.up.weight": (24, 16), "model.layers.1.up.weight": (24, 16)}
    named = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
    component = next(each for each in plugin.mt_optimizers() if each.name == "galore-adafactor")
    config = component.config(rank=4)
    groups = component.split(list(named.items()), config)
    names = {id(each): name for name, each in named.items()}
    planned = state_bytes(lambda groups: component.build(config, groups), groups, names, flat=True)
    assert planned == (pytest.approx(4 * (60 + 16 + 2 * (16 * 4 + 24 + 4)) / (60 * 16 + 2 * 24 * 16)),)


@pytest.mark.needs("mt-plugin-callbacks")
@pytest.mark.parametrize("name", ["muon", "soap", "galore", "galore-adafactor", "apollo"])
def test_noise_on_directions_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} conflicts with callback:gradient-noise"):
        resolve({"model": "kit-tiny", "optimizer": name, "callbacks": ["gradient-noise"]}, PluginHost.discover())


@pytest.mark.needs("mt-plugin-callbacks")
@pytest.mark.parametrize("name", ["ema", "swa"])
def test_an_average_beside_an_optimizers_own_is_refused(name: str) -> None:
    """Evaluations would be of the optimizer's, and say nothing of the other."""
    raw = {"model": "kit-tiny", "optimizer": "schedule-free-adamw", "callbacks": [name]}
    with pytest.raises(ConfigError, match=f"schedule-free-adamw conflicts with callback:{name}"):
        resolve(raw, PluginHost.discover())


@pytest.mark.needs("mt-plugin-adapters")
@pytest.mark.parametrize("name", ["adalora", "delta-lora", "increlora", "plora", "relora"])
def test_an_adapter_that_writes_weights_between_updates_is_refused_beside_an_average(name: str) -> None:
    """The average is what is evaluated and published: ranks that adalora has pruned would be in it, and merges of relora twice."""
    raw = {"model": "kit-tiny", "optimizer": "schedule-free-adamw", "adapter": name}
    with pytest.raises(ConfigError, match=f"schedule-free-adamw conflicts with adapter:{name}"):
        resolve(raw, PluginHost.discover())


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_fused_update_in_16_bits_is_refused_by_the_dtype(dtype: str) -> None:
    config, offers = plan_of("lomo", zero_stage=0)
    config = config.model_copy(update={"train": config.train.model_copy(update={"dtype": dtype})})
    with pytest.raises(ConfigError) as caught:
        make_plan(config, world=1, device="cuda", offers=offers)
    assert f"train.dtype: lomo changes each weight as its gradient arrives, and {dtype} keeps copies" in str(
        caught.value
    )
    assert "zero1" not in str(caught.value), "the stage that was asked for is not to blame"


def test_a_fused_update_of_several_ranks_takes_no_compiled_blocks() -> None:
    """A rank that gives up compiling has its gradients in another order, and they are exchanged one by one."""
    config, offers = plan_of("lomo")
    train = {"compile": True, "micro_batch_size": 4, "global_batch_size": 8, "dtype": "fp32"}
    compiled = config.model_copy(update={"train": config.train.model_copy(update=train)})
    with pytest.raises(ConfigError, match=r"train.compile: lomo exchanges each gradient as it arrives"):
        make_plan(compiled, world=2, device="cpu", offers=offers)
    alone = compiled.train.model_copy(update={"micro_batch_size": 8})
    assert make_plan(config.model_copy(update={"train": alone}), world=1, device="cpu", offers=offers).world == 1


def test_a_fused_update_takes_one_micro_batch() -> None:
    config, offers = plan_of("lomo")
    many = config.train.model_copy(update={"micro_batch_size": 2, "global_batch_size": 16, "dtype": "fp32"})
    said = r"lomo keeps no gradients, which 4 micro-batches(?s:.*)--train\.micro-batch-size 8"
    whole = config.parallel.model_copy(update={"zero_stage": 0})
    config = config.model_copy(update={"train": many, "parallel": whole})
    with pytest.raises(ConfigError, match=said):
        make_plan(config, world=2, device="cpu", offers=offers)


@pytest.mark.parametrize("component", plugin.mt_optimizers(), ids=lambda each: each.name)
def test_offload_is_refused_on_paper_where_it_is_not_declared(component: Any) -> None:
    device = sorted(component.devices)[0]
    config, offers = plan_of(component.name, zero_stage=2, offload="optimizer")
    config = config.model_copy(update={"train": config.train.model_copy(update={"dtype": "fp32"})})
    if "offload" in component.layouts:
        assert make_plan(config, world=2, device=device, offers=offers).offload == "optimizer"
        return
    with pytest.raises(ConfigError, match=rf"{component.name} does not support offload(?s:.*)--parallel\.offload none"):
        make_plan(config, world=2, device=device, offers=offers)


def test_what_needs_a_gpu_is_refused_elsewhere() -> None:
    config, offers = plan_of("paged-adamw-8bit")
    with pytest.raises(ConfigError, match="paged-adamw-8bit does not run on cpu; it runs on cuda"):
        make_plan(config, world=1, device="cpu", offers=offers)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ({"name": "sgd", "nesterov": True}, "nesterov needs momentum above 0"),
        ({"name": "adafactor", "relative": False, "eps": 0.1}, "eps 0.1 does nothing where relative is false"),
        ({"name": "lion", "beta3": 0.9}, "beta3"),
        ({"name": "muon", "ns_steps": 0}, "ns-steps: should be greater than 0"),
        ({"name": "adam", "rates": {"*": {"scale": 2, "value": 0.1}}}, "keep one of them"),
        ({"name": "linon"}, "Did you mean 'lion'"),
        ({"name": "sparse-adam", "weight_decay": 0.1}, "weight-decay: should be less than or equal to 0"),
    ],
)
def test_bad_options_are_one_clear_message(optimizer: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve({"model": "kit-tiny", "optimizer": optimizer}, PluginHost.discover())


@pytest.mark.parametrize("name", ["galore-per-layer", "adalomo"])
def test_planned_state_is_what_an_optimizer_that_sees_one_gradient_keeps(name: str) -> None:
    shapes = {
        "embed.weight": (300, 160),
        "model.layers.0.up.weight": (240, 160),
        "model.layers.1.up.weight": (240, 160),
    }
    named = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    component = next(each for each in plugin.mt_optimizers() if each.name == name)
    config = component.config(rank=100) if name == "galore-per-layer" else component.config()
    groups = component.split(list(named.items()), config) if component.split else [{"params": [*named.values()]}]
    names = {id(each): name for name, each in named.items()}
    planned = state_bytes(lambda own: component.build(config, own), groups, names, flat=False, whole=True)
    optimizer = component.build(config, groups)
    for parameter in named.values():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for size, group in zip(planned, groups, strict=True):
        state = [value for each in group["params"] for value in optimizer.state[each].values()]
        kept = sum(each.nbytes for each in state if isinstance(each, torch.Tensor) and each.dim())
        assert size * sum(each.numel() for each in group["params"]) == pytest.approx(kept)
        assert name == "adalomo" or kept > 0
