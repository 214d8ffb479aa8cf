"""The resampler is Idefics2's connector, for items of any lengths beside one another."""

from __future__ import annotations

import pytest
import torch
from transformers import Idefics2Config
from transformers.models.idefics2.modeling_idefics2 import Idefics2Connector

from mt_core import DataError
from mt_plugin_multimodal.projectors.resampler import COMPONENT, ResamplerConfig

SOURCE, TARGET, FEATURES = 10, 16, (5, 1, 8)
SIZES = {"queries": 3, "depth": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "ffn_dim": 20, "norm_eps": 1e-6}


@pytest.fixture(scope="module")
def theirs() -> Idefics2Connector:
    torch.manual_seed(0)
    config = Idefics2Config(
        vision_config={"hidden_size": SOURCE, "num_attention_heads": 2},
        text_config={"model_type": "mistral", "hidden_size": TARGET, "intermediate_size": 20, "hidden_act": "silu"},
        perceiver_config={
            "hidden_size": TARGET,
            "resampler_n_latents": 3,
            "resampler_depth": 2,
            "resampler_n_heads": 4,
            "num_key_value_heads": 2,
            "resampler_head_dim": 6,
        },
    )
    connector = Idefics2Connector(config)
    for parameter in connector.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return connector


@pytest.fixture
def ours(theirs: Idefics2Connector) -> torch.nn.Module:
    module = COMPONENT.build(ResamplerConfig(**SIZES), source=SOURCE, target=TARGET)
    module.load_state_dict(theirs.state_dict())
    return module


@pytest.mark.parametrize("features", [FEATURES, (4, 4)])
def test_values_and_gradients_equal_transformers_on_each_item_alone(theirs, ours, features) -> None:
    inputs = torch.randn(sum(features), SOURCE)
    weight = torch.randn(3 * len(features), TARGET)
    out = ours(inputs, features, [None] * len(features))
    (out * weight).sum().backward()
    theirs.zero_grad()
    alone = torch.cat([theirs(item[None], torch.ones(1, len(item)))[0] for item in inputs.split(list(features))])
    (alone * weight).sum().backward()
    torch.testing.assert_close(out, alone, rtol=1e-5, atol=1e-5)
    for (name, mine), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_tokens_are_the_queries_whatever_an_item_is(ours) -> None:
    config = ResamplerConfig(**SIZES)
    assert [COMPONENT.tokens(config, each, None) for each in FEATURES] == [3, 3, 3]
    assert len(ours(torch.randn(14, SOURCE), FEATURES, [None] * 3)) == 9
    with pytest.raises(DataError, match="0 features"):
        COMPONENT.tokens(config, 0, None)


def test_latents_begin_at_one(ours) -> None:
    for name, parameter in ours.named_parameters():
        ours.init_tensor(name, parameter.data, torch.Generator())
    assert (ours.perceiver_resampler.latents == 1).all()
    assert 0.01 < ours.modality_projection.up_proj.weight.std() < 0.03


def test_heads_that_share_nothing_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="n_kv_heads to a divisor"):
        ResamplerConfig(n_heads=4, n_kv_heads=3)
