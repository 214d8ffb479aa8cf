"""Products in fp8: equal to torch's own kernel and to bf16 within what eight bits allow, on every layout, and gone in an evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mt_core.errors import ConfigError, UsageError
from mt_core.nn import TrainModel
from mt_core.plugins.host import PluginHost
from mt_train.engine.fp8 import BACKWARD, FORWARD, Fp8Linear, _multiply, _round, multiply_in_fp8
from mt_train.engine.plan import make_plan
from mt_train.plugins.resolve import resolve

CPU = torch.device("cpu")


def layer_and_rows(seed: int, *rows: int) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(seed)
    linear = nn.Linear(64, 96, dtype=torch.bfloat16)
    x = (torch.randn(*rows, 64) * torch.rand(64).exp()).bfloat16().requires_grad_()
    return linear, x, (torch.randn(*rows, 96) * 1e-3).bfloat16()


def gradients(layer: nn.Module, linear: nn.Linear, x: Tensor, grad: Tensor) -> list[Tensor]:
    """Output, and gradients of input, weight and bias."""
    linear.zero_grad(set_to_none=True)
    x.grad = None
    out = layer(x)
    out.backward(grad)
    assert x.grad is not None
    assert linear.weight.grad is not None
    assert linear.bias.grad is not None
    return [each.detach().double() for each in (out, x.grad, linear.weight.grad, linear.bias.grad)]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", [(32,), (4, 16), (3, 7)])
def test_outputs_and_gradients_are_those_of_bf16_within_three_bits_of_mantissa(rows: tuple[int, ...]) -> None:
    linear, x, grad = layer_and_rows(0, *rows)
    expected = gradients(linear, linear, x, grad)
    found = gradients(Fp8Linear(linear), linear, x, grad)
    # Rounding to 3 bits errs by up to 1/16, by 1/16/sqrt(3) in the mean, and each product has two such factors; E5M2 has 2 bits.
    for value, reference, most in zip(found, expected, (0.06, 0.1, 0.1, 0.0), strict=True):
        assert relative(value, reference) <= most
    assert relative(found[0], expected[0]) > 1e-3  # it is fp8


@pytest.mark.parametrize("dtype", [FORWARD, BACKWARD])
def test_a_product_equals_torchs_own_kernel(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    (one, one_scale), (other, other_scale) = (
        _round(torch.randn(shape, dtype=torch.bfloat16), kind)
        for shape, kind in (((32, 64), dtype), ((48, 64), FORWARD))
    )
    found = _multiply(one, one_scale, other.t(), other_scale, torch.float32, fast=False)
    expected = torch._scaled_mm(one, other.t(), scale_a=one_scale, scale_b=other_scale, out_dtype=torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # the order of a sum in fp32


def test_rounding_keeps_the_largest_number_and_zeros() -> None:
    value = torch.tensor([[0.0, -3.0, 1.5, 0.75]], dtype=torch.bfloat16)
    rounded, scale = _round(value, FORWARD)
    torch.testing.assert_close(rounded.float() * scale, value.float(), rtol=1e-6, atol=0)  # a power of two apart
    nothing, scale = _round(torch.zeros(2, 16, dtype=torch.bfloat16), FORWARD)
    assert not nothing.float().any()
    assert scale > 0


def test_a_number_that_is_none_reaches_the_result() -> None:
    linear, x, _ = layer_and_rows(0, 16)
    with torch.no_grad():
        x[3, 5] = float("nan")
    assert Fp8Linear(linear)(x).isnan().any()


def test_an_evaluation_multiplies_as_whoever_uses_the_weights() -> None:
    linear, x, _ = layer_and_rows(0, 16)
    layer = Fp8Linear(linear).eval()
    assert torch.equal(layer(x), functional.linear(x, linear.weight, linear.bias))


def test_the_input_is_kept_in_a_byte_a_number_and_not_at_all_under_a_frozen_weight() -> None:
    linear, x, _ = layer_and_rows(0, 16)

    def kept() -> list[tuple[torch.dtype, int]]:
        found: list[tuple[torch.dtype, int]] = []

        def keep(tensor: Tensor) -> Tensor:
            found.append((tensor.dtype, tensor.numel()))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            Fp8Linear(linear)(x)
        return [each for each in found if each[1] > 1 and each[1] != linear.weight.numel()]

    assert kept() == [(FORWARD, x.numel())]
    linear.weight.requires_grad_(False)
    assert kept() == []


class Toy(TrainModel):
    routers = ("gate",)

    def __init__(self) -> None:
        super().__init__()
        block = nn.ModuleDict({"wide": nn.Linear(64, 32), "narrow": nn.Linear(64, 16), "gate": nn.Linear(64, 64)})
        block["odd"] = nn.Linear(64, 40)
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(64, 64), "norm": nn.Identity()})
        self.model["layers"] = nn.ModuleList([block])
        self.lm_head = nn.Linear(64, 64)


def test_large_layers_of_blocks_are_taken_and_head_router_small_and_odd_ones_stay() -> None:
    model = Toy()
    names = {name: id(each) for name, each in model.named_parameters()}
    assert multiply_in_fp8(model, least=2048, device=CPU) == ["model.layers.0.wide"]
    assert {name: id(each) for name, each in model.named_parameters()} == names


def test_a_model_without_such_a_layer_is_refused_with_the_key_to_lower() -> None:
    with pytest.raises(UsageError, match=r"at least 1,000,000 weights.*lower train\.fp8_min_size"):
        multiply_in_fp8(Toy(), least=1_000_000, device=CPU)


def test_a_gpu_without_units_for_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    with pytest.raises(UsageError, match=r"capability 8\.9 or more.*A100 has 8\.0"):
        multiply_in_fp8(Toy(), least=1, device=torch.device("cuda"))


@pytest.mark.parametrize("dtype", ["fp32", "auto"])
def test_another_precision_than_bf16_is_refused_on_paper(dtype: Any) -> None:
    resolved = resolve({"model": {"name": "llama"}, "train": {"matmul": "fp8", "dtype": dtype}}, PluginHost.discover())
    with pytest.raises(ConfigError, match=r"train\.matmul.*trains in fp32.*--train\.dtype bf16"):
        make_plan(resolved.config, world=1, device="cpu", offers=resolved.offers.values())
