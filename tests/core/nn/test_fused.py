"""Fused operations have the value and the gradient of their plain form."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from mt_core.nn import RMSNorm, geglu, swiglu


@pytest.mark.parametrize(("centred", "rounds_last"), [(False, False), (True, False), (False, True)])
def test_rms_norm_equals_torchs_in_float64(centred: bool, rounds_last: bool) -> None:
    """float32 rounding is 6e-8; sums over 48 numbers make it some 1e-6."""
    torch.manual_seed(0)
    norm, x = RMSNorm(48, eps=1e-5, centred=centred, rounds_last=rounds_last), torch.randn(2, 7, 48, requires_grad=True)
    grad = torch.randn(2, 7, 48)
    assert torch.equal(norm.weight, torch.zeros(48) if centred else torch.ones(48))
    with torch.no_grad():
        norm.weight.normal_()
    norm(x).backward(grad)
    x64, weight64 = x.detach().double().requires_grad_(), norm.weight.detach().double().requires_grad_()
    expected = F.rms_norm(x64, (48,), weight64 + 1 if centred else weight64, 1e-5)
    expected.backward(grad.double())
    torch.testing.assert_close(norm(x).double(), expected, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(x.grad.double(), x64.grad, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(norm.weight.grad.double(), weight64.grad, atol=4e-6, rtol=4e-6)


def test_rms_norm_keeps_bf16_inputs_in_bf16_and_computes_in_fp32() -> None:
    norm, x = RMSNorm(32, eps=1e-6).bfloat16(), torch.randn(3, 5, 32).bfloat16()
    expected = F.rms_norm(x.float(), (32,), None, 1e-6).bfloat16()
    assert norm(x).dtype == torch.bfloat16
    assert torch.equal(norm(x), expected)


def test_a_centred_norm_rounds_to_bf16_after_scaling() -> None:
    norm, x = RMSNorm(32, eps=1e-6, centred=True).bfloat16(), torch.randn(3, 5, 32).bfloat16()
    with torch.no_grad():
        norm.weight.normal_()
    expected = F.rms_norm(x.float(), (32,), 1 + norm.weight.float(), 1e-6).bfloat16()
    assert torch.equal(norm(x), expected)


def test_a_norm_that_rounds_last_rounds_to_bf16_after_scaling() -> None:
    norm, x = RMSNorm(32, eps=1e-6, rounds_last=True).bfloat16(), torch.randn(3, 5, 32).bfloat16()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
    expected = F.rms_norm(x.float(), (32,), norm.weight.float(), 1e-6).bfloat16()
    assert torch.equal(norm(x), expected)


def test_geglu_equals_its_plain_form() -> None:
    gate, up = (torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(geglu(gate, up), F.gelu(gate, approximate="tanh") * up)
    assert torch.autograd.gradcheck(geglu, (gate, up))


def test_swiglu_equals_its_plain_form() -> None:
    gate, up = (torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(swiglu(gate, up), F.silu(gate) * up)
    assert torch.autograd.gradcheck(swiglu, (gate, up))


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_norm_weight_gets_no_gradient(frozen: bool) -> None:
    norm, x = RMSNorm(8), torch.randn(1, 2, 8, requires_grad=True)
    norm.weight.requires_grad_(not frozen)
    norm(x).sum().backward()
    assert (norm.weight.grad is None) == frozen


@pytest.mark.parametrize("centred", [False, True])
def test_without_gradients_the_bits_are_the_same(centred: bool) -> None:
    norm, x, up = RMSNorm(16, centred=centred), torch.randn(2, 3, 16), torch.randn(2, 3, 16)
    for operation in (norm, lambda each: swiglu(each, up), lambda each: geglu(each, up)):
        with torch.no_grad():
            found = operation(x)
        assert torch.equal(found, operation(x))
