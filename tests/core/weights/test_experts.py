"""Weights of experts in the form that is asked for, from files in either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mt_core import ExpertLayout
from mt_core.nn import Choice, Experts, swiglu
from mt_core.weights import fused_experts, listed_experts, load_rows, open_safetensors

PLACE = "model.layers.0.mlp.experts"
PLAIN = ExpertLayout(n_experts=3, width=6, hidden=4)
GPT_OSS = ExpertLayout(n_experts=3, width=6, hidden=4, interleaved=True, transposed=True, bias=True)
UNGATED = ExpertLayout(n_experts=3, width=6, hidden=4, bias=True, projections=("up_proj", "down_proj"))
LAYOUTS = [PLAIN, GPT_OSS, ExpertLayout(n_experts=3, width=6, hidden=4, projections=("w1", "w3", "w2")), UNGATED]


def fused_weights(layout: ExpertLayout) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = layout.fused_shapes()
    return {f"{PLACE}.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def loaders_of(tensors: dict[str, Tensor]) -> dict[str, Callable[[], Tensor]]:
    return {name: tensor.clone for name, tensor in tensors.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_forms_compute_the_same_from_the_same_weights(layout: ExpertLayout) -> None:
    """Which numbers are whose, the fused form and transformers agree on (tests/core/nn/test_experts.py)."""
    weights = fused_weights(layout)
    fused = Experts(layout, torch.relu if layout is UNGATED else swiglu)
    listed = fused.make_listed()
    fused.load_state_dict({name.removeprefix(f"{PLACE}."): each for name, each in weights.items()})
    found = listed_experts(loaders_of(weights), {PLACE: layout})
    listed.load_state_dict({name.removeprefix(f"{PLACE}."): load() for name, load in found.items()})
    x_ND = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    choice = Choice(torch.tensor([[0, 2]]).repeat(7, 1), torch.rand(7, 2), torch.full((7, 3), 1 / 3))
    assert torch.allclose(fused(x_ND, choice), listed(x_ND, choice), atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_that_are_listed_and_fused_again_are_the_same_bits(layout: ExpertLayout) -> None:
    weights = fused_weights(layout)
    listed = listed_experts(loaders_of(weights), {PLACE: layout})
    assert f"{PLACE}.2.{layout.projections[-1]}.weight" in listed
    assert not set(listed) & set(weights)
    again = fused_experts(listed, {PLACE: layout})
    assert set(again) == set(weights)
    assert all(torch.equal(load(), weights[name]) for name, load in again.items())


def test_rows_of_a_fused_tensor_are_those_of_some_experts_and_the_others_are_not_loaded() -> None:
    loaded = []
    listed = listed_experts(loaders_of(fused_weights(PLAIN)), {PLACE: PLAIN})

    def spy(name: str) -> Callable[[], Tensor]:
        return lambda: (loaded.append(name), listed[name]())[1]

    fused = fused_experts({name: spy(name) for name in listed}, {PLACE: PLAIN})
    name = f"{PLACE}.gate_up_proj"
    assert torch.equal(load_rows(fused[name], 1, 3), fused_weights(PLAIN)[name][1:3])
    assert {each.split(".")[5] for each in loaded} == {"1", "2"}


def test_one_expert_of_a_file_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = fused_weights(GPT_OSS)
    save_file(weights, tmp_path / "model.safetensors")
    loaders = open_safetensors(tmp_path / "model.safetensors")
    whole = loaders[f"{PLACE}.down_proj"]
    assert whole.shape == (3, 4, 6)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(whole), "__call__", lambda self: pytest.fail("the whole tensor is loaded"))
    found = listed_experts(loaders, {PLACE: GPT_OSS})[f"{PLACE}.1.down_proj.weight"]()
    assert torch.equal(found, weights[f"{PLACE}.down_proj"][1].T)


def test_what_is_no_expert_and_what_is_incomplete_stays_as_it_is() -> None:
    loaders = loaders_of({"model.norm.weight": torch.ones(6), f"{PLACE}.0.down_proj.weight": torch.ones(6, 4)})
    assert fused_experts(loaders, {PLACE: PLAIN}) == loaders
    assert listed_experts(loaders, {PLACE: PLAIN}) == loaders
