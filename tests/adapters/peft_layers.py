"""Layers of peft beside ours, with the same values: what both give forward, backward and merged."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora.layer import Linear as PeftLora
from torch import Tensor, nn

from mt_core.adapters import Place
from mt_core.nn import AdaptedLinear

TOLERANCE = 1e-5
"""Relative, in fp32: both sum the same few hundred products in another order, which costs a few times 6e-8 each."""


def place(name: str = "model.layers.0.self_attn.q_proj", targets: tuple[str, ...] = ()) -> Place:
    return Place(name, 0, targets or (name,))


def linear(inputs: int = 24, outputs: int = 16, *, bias: bool = True) -> nn.Linear:
    """A frozen layer of random weights."""
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias)
    return layer.requires_grad_(False)


def spaced_linear(inputs: int = 24, outputs: int = 16) -> nn.Linear:
    """A frozen layer whose singular values fall evenly from 1 to 0.15.

    A singular direction is known to a rounding of the largest value over the gap to the next one, here 6e-8 · 1 / 0.06 =
    1e-6. Random values have gaps of any size, and kernels of other processors then find directions 1e-5 apart.
    """
    layer = linear(inputs, outputs)
    u, _, v = torch.linalg.svd(layer.weight.double(), full_matrices=False)
    layer.weight.copy_(u * torch.linspace(1.0, 0.15, min(inputs, outputs)).double() @ v)
    return layer


def start(layer: AdaptedLinear, *, seed: int = 1) -> AdaptedLinear:
    """With its first values, and those of shared parameters."""
    for _, parameter in layer.own_parameters():
        if hasattr(parameter, "shared"):
            parameter.shared.fill(parameter.data, torch.Generator().manual_seed(seed))
    layer.initialise(torch.Generator().manual_seed(seed))
    for name, parameter in layer.own_parameters():
        parameter.requires_grad_(layer.trained is None or name in layer.trained)
    return layer


def move(layer: AdaptedLinear, scale: float = 0.3) -> AdaptedLinear:
    """As after some training: every trained number is another one."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, parameter in layer.own_parameters():
            if parameter.requires_grad:
                parameter += scale * torch.randn(parameter.shape, generator=generator)
    return layer


def peft_lora(base: nn.Linear, *, rank: int, alpha: float, **options: Any) -> PeftLora:
    return PeftLora(
        copy.deepcopy(base), "default", config=LoraConfig(r=rank, lora_alpha=alpha, **options), r=rank, lora_alpha=alpha
    )


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float = TOLERANCE) -> None:
    assert ours.shape == theirs.shape
    distance = ((ours - theirs).norm() / theirs.norm().clamp_min(1e-12)).item()
    assert distance < tolerance, distance


def compare(ours: AdaptedLinear, theirs: nn.Module, pairs: Mapping[str, nn.Parameter]) -> None:
    """Gives peft's parameters the values of ours, and holds output, gradients and merged weight against each other.

    ``pairs``: each of our trained parameters by name, and the one of peft, whose shape may have further dimensions of 1.
    """
    own = dict(ours.own_parameters())
    assert set(pairs) == {name for name, each in own.items() if each.requires_grad}
    with torch.no_grad():
        for name, parameter in pairs.items():
            parameter.copy_(own[name].reshape(parameter.shape))
    generator = torch.Generator().manual_seed(3)
    x, grad = (torch.randn(2, 5, size, generator=generator) for size in (ours.in_features, ours.out_features))
    x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out_ours, out_theirs = ours(x_ours), theirs(x_theirs)
    assert_close(out_ours, out_theirs)
    out_ours.backward(grad)
    out_theirs.backward(grad)
    assert_close(x_ours.grad, x_theirs.grad)
    for name, parameter in pairs.items():
        assert_close(own[name].grad, parameter.grad.reshape(own[name].shape))
    theirs.merge()
    assert_close(ours.merged_weight(), theirs.get_base_layer().weight)
    if ours.bias is not None:
        assert_close(ours.merged_bias(), theirs.get_base_layer().bias)


def compare_with_lora(ours: AdaptedLinear, base: nn.Linear, **options: Any) -> None:
    """Moves our A and B, and compares the layer with peft's LoRA on ``base``."""
    theirs = peft_lora(base, **options)
    pair = {"lora_A": theirs.lora_A["default"].weight, "lora_B": theirs.lora_B["default"].weight}
    compare(move(ours), theirs, pair)


def check_start_and_merge(layer: AdaptedLinear, base: nn.Linear, *, first: float = 0.0) -> None:
    """The first output is that of ``base`` within ``first``; merged equals unmerged; unmerging restores bits; base is frozen."""
    x = torch.randn(3, base.in_features, generator=torch.Generator().manual_seed(4))
    expected = base(x)
    assert ((layer(x) - expected).norm() / expected.norm()).item() <= first
    assert not layer.weight.requires_grad
    move(layer)
    before, bits = layer(x).detach(), {name: each.clone() for name, each in layer.named_parameters()}
    assert ((before - expected).norm() / expected.norm()).item() > 0.05, "it trains something"
    layer.merge()
    assert_close(layer(x), before)
    layer.unmerge()
    assert all(torch.equal(each, bits[name]) for name, each in layer.named_parameters())
    assert torch.equal(layer(x), before)
