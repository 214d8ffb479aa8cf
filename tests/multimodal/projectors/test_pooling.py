"""Pooling knows true lengths: an item is the same beside any others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mt_core import DataError
from mt_plugin_multimodal.projectors.pooling import COMPONENT, PoolingConfig

SOURCE, TARGET = 6, 4
REFERENCES = {
    "last": lambda x: x[-1:],
    "first": lambda x: x[:1],
    "mean": lambda x: x.mean(0, keepdim=True),
    "sum": lambda x: x.sum(0, keepdim=True),
    "adaptive": lambda x: nn.AdaptiveAvgPool1d(3)(x.T[None])[0].T,
    "all": lambda x: x,
}


def config_of(pool: str) -> PoolingConfig:
    return PoolingConfig(pool=pool, tokens=3 if pool == "adaptive" else None)


@pytest.mark.parametrize("pool", REFERENCES)
@given(features=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_hidden_states_and_gradients_are_those_of_each_item_alone(pool: str, features: list[int]) -> None:
    torch.manual_seed(0)
    config = config_of(pool)
    ours = COMPONENT.build(config, source=SOURCE, target=TARGET)
    inputs = torch.randn(sum(features), SOURCE, requires_grad=True)
    out = ours(inputs, features, [None] * len(features))
    assert len(out) == sum(COMPONENT.tokens(config, each, None) for each in features)
    (gradient,) = torch.autograd.grad(out.square().sum(), inputs)
    alone = ours.linear(torch.cat([REFERENCES[pool](item) for item in inputs.split(features)]))
    (expected,) = torch.autograd.grad(alone.square().sum(), inputs)
    torch.testing.assert_close(out, alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_a_mean_of_bfloat16_features_is_added_up_in_fp32() -> None:
    ours = COMPONENT.build(config_of("mean"), source=1, target=1).bfloat16()
    nn.init.ones_(ours.linear.weight)
    nn.init.zeros_(ours.linear.bias)
    assert ours(torch.ones(1000, 1, dtype=torch.bfloat16), (1000,), [None]).item() == 1.0


def test_an_item_without_features_is_refused() -> None:
    with pytest.raises(DataError, match="0 features"):
        COMPONENT.tokens(config_of("all"), 0, None)


@pytest.mark.parametrize("options", [{"pool": "adaptive"}, {"pool": "mean", "tokens": 3}])
def test_pieces_belong_to_adaptive_pooling_alone(options) -> None:
    with pytest.raises(ValueError, match="set both or neither"):
        PoolingConfig(**options)
