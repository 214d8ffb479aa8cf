"""LoRA-Dash against the paper's formula."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from formula import check_formula
from peft_layers import assert_close, check_start_and_merge, linear, move, place, start
from plain_engine import train

from mt_plugin_adapters.variants.lora_dash import COMPONENT
from mt_plugin_adapters.variants.lora_dash.adapter import LoraDash
from mt_plugin_adapters.variants.lora_dash.config import DashConfig
from mt_plugin_adapters.variants.lora_dash.layer import DashLinear

SMALL: dict = {"rank": 4, "alpha": 8.0, "explore_steps": 2, "directions": 3}


def model(**options: object) -> tuple[nn.Sequential, LoraDash]:
    adapter = COMPONENT.build(DashConfig(**{**SMALL, **options}))
    return nn.Sequential(*(start(adapter.layer(linear(*size), place())) for size in ((24, 16), (16, 8)))), adapter


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(9, 24, generator=generator), torch.randn(9, 8, generator=generator)) for _ in range(count)]


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for each in module.parameters() if each.requires_grad], lr=0.01)


def train_steps(steps: int, **options: object) -> nn.Sequential:
    net, adapter = model(**options)
    for _ in train(net, adapter, adam(net), batches(steps)):
        pass
    return net


def test_the_chosen_directions_are_those_of_the_highest_change_rates() -> None:
    """|uᵀ ΔW v| / s in float64; a direction is u vᵀ, as the signs of singular vectors are free."""
    for layer in train_steps(2):
        u, s, v = torch.linalg.svd(layer.weight.double(), full_matrices=False)
        change = 2.0 * (layer.lora_B @ layer.lora_A).double()
        rates = torch.stack([(u[:, i] @ change @ v[i]).abs() / s[i] for i in range(len(s))])
        order = rates.argsort(descending=True)
        assert rates[order[2]] > 1.0001 * rates[order[3]], "no tie"
        for place_of, i in enumerate(order[:3]):
            assert_close(
                torch.outer(layer.dash_u[:, place_of], layer.dash_v[place_of]).double(),
                torch.outer(u[:, i], v[i]),
                1e-4,
            )


def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula() -> None:
    """W + s·BA + Σ d u vᵀ."""
    layer = move(train_steps(2)[0])
    layer.zero_grad()
    u, v = layer.dash_u.double(), layer.dash_v.double()
    check_formula(
        layer, lambda w, lora_A, lora_B, dash_index: w + 2.0 * lora_B @ lora_A + u @ torch.diag(dash_index) @ v
    )


def test_lengths_stay_zero_until_the_directions_are_chosen_and_then_learn() -> None:
    net, adapter = model()
    first = copy.deepcopy(net)
    seen = []
    for _ in train(net, adapter, adam(net), batches(4)):
        seen.append((int(torch.count_nonzero(net[0].dash_index)), int(torch.count_nonzero(net[0].dash_u)) > 0))
    assert seen == [(0, False), (0, True), (3, True), (3, True)]
    assert torch.equal(net[0].weight, first[0].weight)


def test_directions_are_chosen_once() -> None:
    early, late = train_steps(2), train_steps(5)
    assert torch.equal(early[0].dash_u, late[0].dash_u)
    assert torch.equal(early[0].dash_v, late[0].dash_v)


def test_where_the_last_exploring_update_was_refused_directions_are_chosen_after_the_next() -> None:
    net, adapter = model()
    seen = [net[0].dash_u.clone() for _ in train(net, adapter, adam(net), batches(3), first=3)]
    assert torch.count_nonzero(seen[0]) > 0
    assert torch.equal(seen[0], seen[2])


def test_a_layer_with_fewer_directions_takes_all_of_them() -> None:
    layer = train_steps(2, directions=12)[1]
    assert isinstance(layer, DashLinear)
    assert layer.dash_u.shape == (8, 8)
    assert_close(layer.dash_u.T @ layer.dash_u, torch.eye(8))


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(model()[0][0], linear())
