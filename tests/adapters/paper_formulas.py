"""A layer beside its paper's formula in float64: output, gradients, merged weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from peft_layers import assert_close
from torch import Tensor
from torch.nn import functional

from mt_core.nn import AdaptedLinear


def compare_with_formula(
    ours: AdaptedLinear, weight: Callable[[Tensor, Mapping[str, Tensor]], Tensor], tolerance: float = 1e-5
) -> None:
    """``weight(W, own parameters)`` is the weight that base and adapter are together, all in float64."""
    compare_output(ours, lambda x, base, own: functional.linear(x, weight(base, own)), tolerance)
    own = {name: each.detach().double() for name, each in ours.own_parameters()}
    assert_close(ours.merged_weight().detach().double(), weight(ours.base_weight().double(), own), tolerance)


def compare_output(
    ours: AdaptedLinear, output: Callable[[Tensor, Tensor, Mapping[str, Tensor]], Tensor], tolerance: float = 1e-5
) -> None:
    """``output(x, W, own parameters)`` is the output without the bias, in float64; gradients follow by autograd."""
    own = {name: each.detach().double().requires_grad_() for name, each in ours.own_parameters()}
    generator = torch.Generator().manual_seed(3)
    x, grad = (torch.randn(2, 5, size, generator=generator) for size in (ours.in_features, ours.out_features))
    x32, x64 = x.clone().requires_grad_(), x.double().requires_grad_()
    expected = output(x64, ours.base_weight().double(), own)
    if ours.bias is not None:
        expected = expected + ours.bias.double()
    out = ours(x32)
    assert_close(out.double(), expected, tolerance)
    out.backward(grad)
    expected.backward(grad.double())
    assert_close(x32.grad.double(), x64.grad, tolerance)
    for name, each in ours.own_parameters():
        if each.requires_grad:
            assert_close(each.grad.double(), own[name].grad, tolerance)
