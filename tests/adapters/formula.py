"""A layer beside its paper's weight, written in float64: output, and gradients of inputs and parameters by autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from peft_layers import assert_close
from torch import Tensor

from mt_core.nn import AdaptedLinear


def check_formula(ours: AdaptedLinear, weight: Callable[..., Tensor]) -> None:
    """``weight(W, **trained parameters)`` is the matrix that the layer multiplies by, (outputs, inputs)."""
    own = {name: each for name, each in ours.own_parameters() if each.requires_grad}
    doubles = {name: each.detach().double().requires_grad_() for name, each in own.items()}
    generator = torch.Generator().manual_seed(3)
    x, grad = (torch.randn(2, 5, size, generator=generator) for size in (ours.in_features, ours.out_features))
    x_ours, x_double = x.clone().requires_grad_(), x.double().requires_grad_()
    whole = weight(ours.base_weight().double(), **doubles)
    expected = x_double @ whole.T
    if ours.bias is not None:
        expected = expected + ours.bias.double()
    out = ours(x_ours)
    assert_close(out.double(), expected)
    out.backward(grad)
    expected.backward(grad.double())
    assert_close(x_ours.grad.double(), x_double.grad)
    for name, parameter in own.items():
        assert_close(parameter.grad.double(), doubles[name].grad)
    assert_close(ours.merged_weight().double(), whole)
