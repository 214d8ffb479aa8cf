"""ReLoRA: what is merged, and what is left of the moments."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, linear, place, start
from plain_engine import PlainContext, train

from mt_plugin_adapters.variants.relora import COMPONENT
from mt_plugin_adapters.variants.relora.adapter import Relora
from mt_plugin_adapters.variants.relora.config import ReloraConfig

SMALL: dict = {"rank": 4, "alpha": 8.0, "every_steps": 2, "pruning": "random"}
LEARNING: dict = {  # cycles that are long enough to learn something, and the method's own schedule
    "options": {"every_steps": 50},
    "schedule": {"name": "relora", "reset_steps": 50, "restart_steps": 5},
}


def model(**options: object) -> tuple[nn.Sequential, Relora]:
    adapter = COMPONENT.build(ReloraConfig(**{**SMALL, "pruning": "magnitude", **options}))
    return nn.Sequential(*(start(adapter.layer(linear(*size), place())) for size in ((24, 16), (16, 8)))), adapter


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(9, 24, generator=generator), torch.randn(9, 8, generator=generator)) for _ in range(count)]


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for each in module.parameters() if each.requires_grad], lr=0.01)


def at_the_merge(**options: object) -> tuple[nn.Sequential, dict[str, dict[str, Tensor]], dict[str, dict[str, Tensor]]]:
    """The model after two steps, and moments before and after the merge, by parameter."""
    net, adapter = model(**options)
    optimizer, (first, second) = adam(net), batches(2)
    for _ in train(net, adapter, optimizer, [first], total_steps=2):
        pass
    optimizer.zero_grad()
    (net(second[0]) - second[1]).square().mean().backward()
    optimizer.step()
    names = [name for name, each in net.named_parameters() if each.requires_grad]
    states = [copy.deepcopy(optimizer.state[net.get_parameter(name)]) for name in names]
    x, unmerged = second[0], copy.deepcopy(net)
    adapter.after_step(PlainContext(net, optimizer, 2, 2))
    assert_close(net(x), unmerged(x))
    after = [optimizer.state[net.get_parameter(name)] for name in names]
    return net, dict(zip(names, states, strict=True)), dict(zip(names, after, strict=True))


@pytest.mark.parametrize(("pruned", "kept"), [(0.99, 0.01), (0.75, 0.25), (1.0, 0.0), (0.0, 1.0)])
def test_the_largest_moments_stay_as_they_are_and_the_rest_is_zero(pruned: float, kept: float) -> None:
    """The authors' magnitude pruning: what is below the quantile of the absolute values is set to 0."""
    _, before, after = at_the_merge(pruned=pruned)
    for name, state in before.items():
        for part in ("exp_avg", "exp_avg_sq"):
            value = state[part]
            left = after[name][part]
            count = round(kept * value.numel())
            assert torch.count_nonzero(left) == count
            if count:
                smallest = value.abs().flatten().sort(descending=True).values[count - 1]
                assert torch.equal(left, torch.where(value.abs() >= smallest, value, 0.0))
        assert after[name]["step"] == 2


def test_drawn_moments_stay_as_they_are_whatever_their_size() -> None:
    _, before, after = at_the_merge(pruned=0.5, pruning="random")
    value, left = before["0.lora_A"]["exp_avg"], after["0.lora_A"]["exp_avg"]
    assert torch.count_nonzero(left) == value.numel() // 2
    assert torch.equal(left[left != 0], value[left != 0])
    assert torch.equal(left != 0, after["0.lora_A"]["exp_avg_sq"] != 0), "the same numbers of both moments"
    assert value.abs()[left == 0].max() > value.abs()[left != 0].median()
    assert all(
        torch.equal(left, again["0.lora_A"]["exp_avg"]) for again in [at_the_merge(pruned=0.5, pruning="random")[2]]
    )


def test_a_merge_leaves_the_output_and_begins_a_and_b_anew() -> None:
    net, _, _ = at_the_merge()
    first = model()[0]
    for layer, begun in zip(net, first, strict=True):
        assert torch.count_nonzero(layer.lora_B) == 0
        assert not torch.equal(layer.lora_A, begun.lora_A)
        assert not torch.equal(layer.weight, begun.weight)


def test_several_cycles_change_the_weight_by_more_than_one_cycles_rank() -> None:
    net, adapter = model()
    first = net[0].weight.clone()
    for _ in train(net, adapter, adam(net), batches(6)):
        pass
    assert torch.linalg.matrix_rank(net[0].weight - first, rtol=1e-5) == 12


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(model()[0][0], linear())
