"""In 16 bits a base that nothing trains is built in them, and every adapter begins with the bits that it has over one in fp32."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import TINY, components, small_options

from mt_core import Adapter
from mt_core.nn import TokenObjective, TrainModel
from mt_core.plugins.host import PluginHost
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_train.assemble import model as assembly
from mt_train.assemble.model import build_engine, frozen_dtypes
from mt_train.assemble.parts import Parts
from mt_train.engine import build as engine_build
from mt_train.engine.plan import Plan, make_plan
from mt_train.engine.precision import cast_model
from mt_train.engine.processes import Process
from mt_train.plugins.resolve import resolve

MEASURE_WHAT_THEY_REWROTE = {"dude"}
"""Adapters that measure their base after they have rewritten it, which is rounded then: their values are one bit of bf16 away."""


class Built:
    """Stands for the engine: what it is given, and in which dtypes."""

    def __init__(self, deepspeed: None, module: Any, optimizer: object, *, plan: Any, **given: Any) -> None:
        self.model: TrainModel = module.model
        self.dtypes = {name: each.dtype for name, each in self.model.named_parameters()}
        self.trained = {name for name, each in self.model.named_parameters() if each.requires_grad}
        cast_model(self.model, plan.dtype)
        self.values: dict[str, Tensor] = dict(self.model.state_dict())


CPU = torch.device("cpu")
with torch.device("meta"):
    BASE = frozenset(name for name, _ in Llama(LlamaConfig(**TINY, max_seq_len=16)).named_parameters())
HOST = PluginHost.discover()


def parts_of(dtype: str, **sections: Any) -> tuple[Parts, Plan]:
    train = {"dtype": dtype, "sequence_len": 16, **sections.pop("train", {})}
    parts = Parts.of(resolve({"model": {"name": "llama", **TINY}, "train": train, **sections}, HOST))
    return parts, make_plan(parts.config, world=1, device="cpu", offers=parts.offers.values())


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    draw = engine_build.value_of
    monkeypatch.setattr(engine_build, "value_of", lambda *given: draw(*given).bfloat16().float())
    monkeypatch.setattr(assembly, "Engine", Built)

    def run(dtype: str = "bf16", *, as_before: bool = False, **sections: Any) -> Built:
        parts, plan = parts_of(dtype, **sections)
        given: dict[str, Any] = {"plan": plan, "process": Process(0, 1, 0, CPU), "deepspeed": None}
        with monkeypatch.context() as patch:
            if as_before:
                patch.setattr(assembly, "frozen_dtypes", lambda *given: {})
            built: Any = build_engine(parts, TokenObjective(), say=lambda text: None, **given)
        assert isinstance(built, Built)
        return built

    return run


def looks_at_data(name: str) -> bool:
    component = components()[name]
    return type(component.build(component.config(**small_options(name)))).prepare is not Adapter.prepare


@pytest.mark.parametrize("name", [name for name in components() if not looks_at_data(name)])
def test_an_adapter_begins_with_the_same_bits(name: str, build: Any) -> None:
    """Over weights that are stored in 16 bits, as published ones are."""
    sections = {"adapter": {"name": name, **small_options(name)}}
    found, wanted = build(**sections), build(**sections, as_before=True)
    assert found.values.keys() == wanted.values.keys()
    assert found.trained == wanted.trained
    for key, value in found.values.items():
        if name in MEASURE_WHAT_THEY_REWROTE:
            torch.testing.assert_close(value, wanted.values[key], rtol=2**-7, atol=0)
        else:
            assert torch.equal(value, wanted.values[key]), key
    for key, kind in found.dtypes.items():
        assert kind == (torch.float32 if key in found.trained or key not in BASE else torch.bfloat16), key


@pytest.mark.parametrize("name", [name for name in components() if looks_at_data(name)])
def test_an_adapter_that_looks_at_data_first_does_so_over_fp32(name: str) -> None:
    assert not frozen_dtypes(*parts_of("bf16", adapter={"name": name, **small_options(name)}), None)


def test_what_is_trained_beside_an_adapter_is_built_in_fp32(build: Any) -> None:
    found = build(adapter={"name": "lora", "rank": 2}, train={"enable": ["*norm*"]})
    for key, kind in found.dtypes.items():
        assert kind == (torch.float32 if "norm" in key or "lora" in key else torch.bfloat16), key


def test_a_run_in_fp32_and_one_that_trains_all_have_all_in_fp32(build: Any) -> None:
    for found in (build("fp32", adapter="lora"), build(adapter="full")):
        assert set(found.dtypes.values()) == {torch.float32}


def test_beside_quantized_weights_the_others_are_in_16_bits(build: Any) -> None:
    found = build(adapter={"name": "lora", "rank": 2}, quantizer="nf4")
    assert {kind for key, kind in found.dtypes.items() if "lora" not in key} == {torch.bfloat16}
    assert not any(key.endswith("q_proj.weight") for key in found.dtypes)


def test_however_the_base_is_built_dropout_draws_the_same(build: Any) -> None:
    states = []
    for sections in ({"adapter": "lora"}, {"adapter": "lora", "as_before": True}):
        torch.manual_seed(3)
        build(**sections)
        states.append(torch.rand(3))
    torch.manual_seed(3)
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], torch.rand(3))
