"""Layers that several variants share: precision, dropout, merging."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import linear, move, place, start

from mt_core.nn import AdaptedLinear, StoredLinear
from mt_plugin_adapters.variants import boft, hira, hra, loha, mora, oft

VARIANTS = {each.COMPONENT.name: each.COMPONENT for each in (boft, hira, hra, loha, mora, oft)}
WITH_DROPOUT = ("hira", "loha", "mora")


def layer(name: str, **options: object) -> AdaptedLinear:
    component = VARIANTS[name]
    small = {"block_size": 4} if "block_size" in component.config.model_fields else {"rank": 4}
    return move(start(component.build(component.config(**small, **options)).layer(linear(), place())), 0.2)


def error(name: str, **options: object) -> float:
    """Of a layer in bfloat16, as a share of what the same numbers give in fp32."""
    half, x = layer(name, **options).bfloat16(), torch.randn(500, 24, generator=torch.Generator().manual_seed(6))
    out = half(x.bfloat16())
    assert out.dtype == torch.bfloat16
    exact = layer(name)
    exact.load_state_dict({key: value.float() for key, value in half.state_dict().items()})
    expected = exact(x.bfloat16().float())
    return ((out.float() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_in_half_precision_fp32_is_no_less_exact(name: str) -> None:
    assert error(name, fp32=True) <= error(name) * 1.02
    assert error(name) < 0.02


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_dropout_is_on_the_adapters_inputs_in_training_alone(name: str) -> None:
    ours, x = layer(name, dropout=0.5), torch.randn(400, 24)
    base = linear()(x)
    kept = ours.eval()(x)
    dropped = ours.train()(x)
    assert not torch.equal(kept, dropped)
    ours.dropout = nn.Dropout(1.0)
    assert torch.equal(ours(x), base), "the base sees inputs without dropout"


class StoredBytes(StoredLinear):
    """A weight that is no parameter, as a quantizer stores it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_parameter("bias", linear.bias)
        self.register_buffer("numbers", linear.weight.detach().clone(), persistent=False)

    def dense_weight(self) -> Tensor:
        return self.get_buffer("numbers").clone()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.get_buffer("numbers"), self.bias)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_the_merged_weight_over_a_weight_that_is_no_parameter_is_that_over_the_plain_one(name: str) -> None:
    """It is what a sampler of online objectives is given of a quantized model."""
    component = VARIANTS[name]
    small = {"block_size": 4} if "block_size" in component.config.model_fields else {"rank": 4}
    made = component.build(component.config(**small)).layer(StoredBytes(linear()), place())
    torch.testing.assert_close(move(start(made), 0.2).merged_weight(), layer(name).merged_weight())
