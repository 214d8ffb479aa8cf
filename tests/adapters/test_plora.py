"""PLoRA: what is merged, what begins anew, and what the stages add up to."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import host_of, modules
from peft_layers import assert_close, linear, place, start
from plain_engine import train

from mt_core import ConfigError, UsageError
from mt_core.nn import tensor_generator
from mt_core.protocols import GradientTransform
from mt_plugin_adapters.variants.plora import COMPONENT
from mt_plugin_adapters.variants.plora.adapter import Plora
from mt_plugin_adapters.variants.plora.config import PloraConfig
from mt_plugin_optim import plugin as optim
from mt_train.plugins.resolve import resolve

SMALL: dict = {"rank": 4, "alpha": 8.0, "every_steps": 2}
FURTHER: dict = {"momentum": {"momentum": 0.3}}
LEARNING: dict = {"options": {"every_steps": 50}}  # stages that are long enough to learn something


def model(**options: object) -> tuple[nn.Sequential, Plora]:
    adapter = COMPONENT.build(PloraConfig(**SMALL, **options))
    layers = [start(adapter.layer(linear(24, 16), place())), start(adapter.layer(linear(16, 8), place()))]
    return nn.Sequential(*layers), adapter


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(9, 24, generator=generator), torch.randn(9, 8, generator=generator)) for _ in range(count)]


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for each in module.parameters() if each.requires_grad], lr=0.01)


def test_a_stage_ends_with_the_same_output_a_new_a_a_zero_b_and_no_moments() -> None:
    net, adapter = model()
    first, optimizer = copy.deepcopy(net), adam(net)
    x = batches(1)[0][0]
    before = None
    for context in train(net, adapter, optimizer, batches(2)):
        before = net(x).detach() if context.step == 1 else before
    layer = net[0]
    assert torch.count_nonzero(layer.lora_B) == 0
    assert not torch.equal(layer.lora_A, first[0].lora_A)
    assert layer.lora_A.abs().max() <= 24**-0.5
    assert not torch.equal(layer.weight, first[0].weight)
    for each in (layer.lora_A, layer.lora_B):
        state = optimizer.state[each]
        assert torch.count_nonzero(state["exp_avg"]) == torch.count_nonzero(state["exp_avg_sq"]) == 0
        assert state["step"] == 2
    assert not torch.allclose(before, net(x))


def test_stages_are_loras_one_after_the_other_on_the_base_so_far() -> None:
    """The paper's algorithm in float64: W_k = W_(k-1) + s B_k A_k, each pair trained from anew by an optimizer of no state."""
    net, adapter = model()
    for _ in train(net, adapter, torch.optim.SGD(own_parameters(net), lr=0.05), batches(6)):
        pass
    reference, _ = model()
    pairs = [(each.weight.double(), each.bias.double(), each.lora_A.double()) for each in reference]
    for stage in range(3):
        names = ("0.lora_A", "1.lora_A")
        weights = [weight for weight, _, _ in pairs]
        factors = [
            (a.detach().requires_grad_(), torch.zeros(len(weight), 4, dtype=torch.float64, requires_grad=True))
            for weight, _, a in pairs
        ]
        for x, y in batches(6)[2 * stage : 2 * stage + 2]:
            hidden = x.double()
            for weight, (_, bias, _), (a, b) in zip(weights, pairs, factors, strict=True):
                hidden = hidden @ (weight + 2.0 * b @ a).T + bias
            flat = [each for pair in factors for each in pair]
            gradients = torch.autograd.grad((hidden - y).square().mean(), flat)
            with torch.no_grad():
                for each, gradient in zip(flat, gradients, strict=True):
                    each -= 0.05 * gradient
        drawn = [
            torch.empty(a.shape).uniform_(
                -(a.shape[1] ** -0.5), a.shape[1] ** -0.5, generator=tensor_generator(2 * stage + 2, name)
            )
            for name, (a, _) in zip(names, factors, strict=True)
        ]
        pairs = [
            ((weight + 2.0 * b @ a).detach(), bias, new.double())
            for weight, (_, bias, _), (a, b), new in zip(weights, pairs, factors, drawn, strict=True)
        ]
    for layer, (weight, _, a) in zip(net, pairs, strict=True):
        assert_close(layer.weight.double(), weight)
        assert_close(layer.lora_A.double(), a)


def test_with_momentum_a_stage_is_merged_in_part_and_goes_on_with_the_rest() -> None:
    """In float64: W + m s BA, (1 - m) A, (1 - m) B after every stage, trained by an optimizer of no state."""
    m, (net, adapter), (reference, _) = 0.3, model(momentum=0.3), model()
    for _ in train(net, adapter, torch.optim.SGD(own_parameters(net), lr=0.05), batches(6)):
        pass
    weights = [each.weight.double() for each in reference]
    factors = [(each.lora_A.detach().double(), each.lora_B.detach().double()) for each in reference]
    for step, (x, y) in enumerate(batches(6), start=1):
        flat = [each.requires_grad_() for pair in factors for each in pair]
        hidden = x.double()
        for layer, weight, (a, b) in zip(reference, weights, factors, strict=True):
            hidden = hidden @ (weight + 2.0 * b @ a).T + layer.bias.double()
        gradients = torch.autograd.grad((hidden - y).square().mean(), flat)
        moved = [(each - 0.05 * gradient).detach() for each, gradient in zip(flat, gradients, strict=True)]
        factors = list(zip(moved[::2], moved[1::2], strict=True))
        if step % 2 == 0:
            weights = [weight + m * 2.0 * b @ a for weight, (a, b) in zip(weights, factors, strict=True)]
            factors = [((1 - m) * a, (1 - m) * b) for a, b in factors]
    for layer, weight, (a, b) in zip(net, weights, factors, strict=True):
        assert_close(layer.weight.double(), weight.detach())
        assert_close(layer.lora_A.double(), a)
        assert_close(layer.lora_B.double(), b)


def test_with_momentum_moments_begin_anew_too() -> None:
    net, adapter = model(momentum=0.3)
    optimizer = adam(net)
    for _ in train(net, adapter, optimizer, batches(2)):
        pass
    for each in own_parameters(net):
        assert torch.count_nonzero(each)
        assert torch.count_nonzero(optimizer.state[each]["exp_avg"]) == 0


def own_parameters(net: nn.Module) -> list[nn.Parameter]:
    return [each for each in net.parameters() if each.requires_grad]


def test_several_stages_change_the_weight_by_more_than_one_stages_rank() -> None:
    net, adapter = model()
    first = net[0].weight.clone()
    for _ in train(net, adapter, adam(net), batches(6)):
        pass
    assert torch.linalg.matrix_rank(net[0].weight - first, rtol=1e-5) == 12


@pytest.mark.parametrize("steps", [1, 3])
def test_within_a_stage_the_base_stays(steps: int) -> None:
    net, adapter = model()
    seen = [net[0].weight.clone() for context in train(net, adapter, adam(net), batches(steps)) if context.step % 2]
    assert torch.equal(seen[-1], net[0].weight)
    assert torch.count_nonzero(net[0].lora_B)


def has_plain_moments(optimizer: Any) -> bool:
    """Whether all that it keeps for a weight of 4096 numbers begins anew where each number of it is set to 0."""
    weight = nn.Parameter(torch.ones(64, 64))
    try:
        made = optimizer.build(optimizer.config(), [{"params": [weight], "transformed": True, "block": None}])
    except UsageError:
        pytest.skip("it needs a package that is not here")
    if isinstance(made, GradientTransform):
        return False
    weight.grad = torch.ones(64, 64)
    made.step()
    kept = {key: value for key, value in made.state[weight].items() if isinstance(value, Tensor) and value.dim()}
    return all(each.is_floating_point() and each.element_size() > 1 for each in kept.values()) and "z" not in kept


@pytest.mark.parametrize("adapter", ["plora", "relora"])
@pytest.mark.parametrize(
    "optimizer", [each for each in optim.mt_optimizers() if "cpu" in each.devices], ids=lambda each: each.name
)
def test_an_optimizer_whose_moments_cannot_begin_anew_is_refused(adapter: str, optimizer: Any) -> None:
    """In codes of 8 bits 0 is the largest negative number: the update after a merge would be thousands of times the rate."""
    raw = {"model": {"name": "llama", "dim": 32}, "adapter": adapter, "optimizer": optimizer.name}
    host = host_of(modules()[adapter])
    if has_plain_moments(optimizer):
        resolve(raw, host)
        return
    with pytest.raises(ConfigError, match=f"adapter {adapter} conflicts with optimizer:{optimizer.name}"):
        resolve(raw, host)
