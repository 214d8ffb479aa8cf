"""The Q-Former is BLIP-2's, with its language projection, for items of any lengths beside one another."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import Blip2QFormerConfig, Blip2QFormerModel

from mt_core import DataError
from mt_plugin_multimodal.projectors.qformer import COMPONENT, QFormerConfig

SOURCE, TARGET, FEATURES = 10, 14, (5, 1, 8)
SIZES = {"queries": 3, "dim": 16, "depth": 3, "n_heads": 4, "ffn_dim": 20}


class Reference(nn.Module):
    """What ``Blip2Model`` does with the features of an image."""

    def __init__(self) -> None:
        super().__init__()
        config = Blip2QFormerConfig(
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=20,
            encoder_hidden_size=SOURCE,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.query_tokens = nn.Parameter(torch.zeros(1, 3, 16))
        self.qformer = Blip2QFormerModel(config)
        self.language_projection = nn.Linear(16, TARGET)

    def forward(self, item_LW: torch.Tensor) -> torch.Tensor:
        seen = self.qformer(query_embeds=self.query_tokens, encoder_hidden_states=item_LW[None])
        return self.language_projection(seen.last_hidden_state)[0]


@pytest.fixture(scope="module")
def theirs() -> Reference:
    torch.manual_seed(0)
    reference = Reference()
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.3)
    return reference


@pytest.fixture
def ours(theirs: Reference) -> nn.Module:
    module = COMPONENT.build(QFormerConfig(**SIZES), source=SOURCE, target=TARGET)
    module.load_state_dict(theirs.state_dict())
    return module


@pytest.mark.parametrize("features", [FEATURES, (4, 4)])
def test_values_and_gradients_equal_transformers_on_each_item_alone(theirs, ours, features) -> None:
    inputs = torch.randn(sum(features), SOURCE)
    weight = torch.randn(3 * len(features), TARGET)
    out = ours(inputs, features, [None] * len(features))
    (out * weight).sum().backward()
    theirs.zero_grad()
    alone = torch.cat([theirs(item) for item in inputs.split(list(features))])
    (alone * weight).sum().backward()
    torch.testing.assert_close(out, alone, rtol=1e-5, atol=1e-5)
    found = dict(ours.named_parameters())
    for name, other in theirs.named_parameters():
        torch.testing.assert_close(
            found[name].grad, other.grad, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_it_computes_in_fp32_where_its_parameters_are_bfloat16(ours) -> None:
    inputs = torch.randn(14, SOURCE).bfloat16()
    rounded = COMPONENT.build(QFormerConfig(**SIZES), source=SOURCE, target=TARGET)
    rounded.load_state_dict({name: each.bfloat16().float() for name, each in ours.state_dict().items()})
    seen = []
    for module in (ours.bfloat16(), rounded):
        module.qformer.register_forward_hook(lambda *call: seen.append(call[-1]))
    assert ours(inputs, FEATURES, [None] * 3).dtype == torch.bfloat16
    rounded(inputs.float(), FEATURES, [None] * 3)
    assert torch.equal(*seen)


def test_tokens_are_the_queries_whatever_an_item_is(ours) -> None:
    assert COMPONENT.tokens(QFormerConfig(**SIZES), 7, (1, 1, 7)) == 3
    assert len(ours(torch.randn(14, SOURCE), FEATURES, [None] * 3)) == 9
    with pytest.raises(DataError, match="0 features"):
        COMPONENT.tokens(QFormerConfig(**SIZES), 0, None)


def test_queries_are_drawn_and_norms_begin_at_one(ours) -> None:
    for name, parameter in ours.named_parameters():
        ours.init_tensor(name, parameter.data, torch.Generator())
    assert 0.01 < ours.query_tokens.std() < 0.03
    assert (ours.qformer.layernorm.weight == 1).all()
    assert not ours.language_projection.bias.any()


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="n_heads to a divisor"):
        QFormerConfig(dim=10, n_heads=4)
