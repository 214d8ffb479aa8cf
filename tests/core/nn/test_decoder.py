"""The shared blocks: each option beside transformers' code or beside its plain form; families compare whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.glm4.modeling_glm4 import apply_rotary_pos_emb

from mt_core import DecoderConfig
from mt_core.nn import (
    Batch,
    Block,
    BlockContext,
    DecoderModel,
    GatedMLP,
    GroupedQueryAttention,
    NormNames,
    RMSNorm,
    Rotary,
    SdpaAttention,
    geglu,
    rotate,
    tokens_seen,
)

CONFIG = DecoderConfig(
    vocab_size=31, max_seq_len=64, dim=24, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, ffn_dim=40
)
LENGTH = 12
BEHIND = NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm")


def context_of(length: int = LENGTH) -> BlockContext:
    positions = torch.arange(length)[None]
    return BlockContext(positions_BT=positions, document_ids_BT=torch.zeros_like(positions), attention=SdpaAttention())


def hidden(seed: int = 0) -> Tensor:
    return torch.randn(1, LENGTH, CONFIG.dim, generator=torch.Generator().manual_seed(seed))


def attention_of(**options: Any) -> GroupedQueryAttention:
    torch.manual_seed(1)
    return GroupedQueryAttention(CONFIG, 0, options.pop("rotary", Rotary(CONFIG.head_width)), **options)


@pytest.mark.parametrize(("bias", "qk_norm"), [(False, None), (True, "head"), (True, "all")])
def test_one_matrix_of_queries_keys_and_values_is_three(bias: bool, qk_norm: Any) -> None:
    plain, fused = attention_of(bias=bias, qk_norm=qk_norm), attention_of(bias=bias, qk_norm=qk_norm, fused=True)
    fused.o_proj.load_state_dict(plain.o_proj.state_dict())
    for name in ("weight", "bias") if bias else ("weight",):
        parts = [getattr(each, name) for each in (plain.q_proj, plain.k_proj, plain.v_proj)]
        getattr(fused.qkv_proj, name).data = torch.cat(parts).detach()
    torch.testing.assert_close(fused(hidden(), context_of()), plain(hidden(), context_of()))


def test_one_matrix_of_gate_and_up_projection_is_two() -> None:
    plain, fused = GatedMLP(24, 40, gate=geglu), GatedMLP(24, 40, gate=geglu, fused=True)
    fused.gate_up_proj.weight.data = torch.cat([plain.gate_proj.weight, plain.up_proj.weight]).detach()
    fused.down_proj.load_state_dict(plain.down_proj.state_dict())
    torch.testing.assert_close(fused(hidden()), plain(hidden()))
    reference = plain.down_proj(
        nn.functional.gelu(plain.gate_proj(hidden()), approximate="tanh") * plain.up_proj(hidden())
    )
    torch.testing.assert_close(plain(hidden()), reference)


@pytest.mark.parametrize(("qk_norm", "widths"), [("head", (8, 8)), ("all", (32, 16))])
def test_queries_and_keys_are_normed_by_head_or_over_all_heads(qk_norm: Any, widths: tuple[int, int]) -> None:
    """Scaling the projections then changes nothing; scaling one head's alone shows which of the two it is."""
    attention = attention_of(qk_norm=qk_norm, norm=lambda width: RMSNorm(width, eps=1e-12))
    assert (len(attention.q_norm.weight), len(attention.k_norm.weight)) == widths
    before = attention(hidden(), context_of())
    with torch.no_grad():
        attention.q_proj.weight.mul_(3)
        torch.testing.assert_close(attention(hidden(), context_of()), before)
        attention.k_proj.weight[:8].mul_(3)
    assert torch.allclose(attention(hidden(), context_of()), before, atol=1e-6) == (qk_norm == "head")


def test_without_rotary_tables_a_block_knows_no_positions() -> None:
    """The last token sees all others, in whatever order they stand."""
    attention = attention_of(rotary=None)
    order = torch.cat(
        [torch.randperm(LENGTH - 1, generator=torch.Generator().manual_seed(2)), torch.tensor([LENGTH - 1])]
    )
    torch.testing.assert_close(
        attention(hidden()[:, order], context_of())[:, -1], attention(hidden(), context_of())[:, -1]
    )
    turned = attention_of()
    assert not torch.allclose(turned(hidden()[:, order], context_of())[:, -1], turned(hidden(), context_of())[:, -1])


def test_a_part_of_each_head_turns_in_neighbouring_pairs_as_in_transformers() -> None:
    rotary = Rotary(4, theta=100.0)
    q, k = torch.randn(2, 2, LENGTH, 3, 8).unbind()
    tables = rotary.tables(context_of())
    angles = [torch.cat([table.squeeze(2)] * 2, -1) for table in (tables.cos_BT1F, tables.sin_BT1F)]
    expected = apply_rotary_pos_emb(q, k, *angles, unsqueeze_dim=2)
    torch.testing.assert_close(rotate(q, tables, interleaved=True), expected[0])
    torch.testing.assert_close(rotate(k, tables, interleaved=True), expected[1])
    assert torch.equal(rotate(q, tables, interleaved=True)[..., 4:], q[..., 4:])


@pytest.mark.parametrize(
    "options", [{"window": 5}, {"scale": 0.3}, {"softcap": 2.0}], ids=lambda each: next(iter(each))
)
def test_options_of_the_attention_reach_it(options: Any) -> None:
    plain, other = attention_of(), attention_of(**options)
    assert not torch.allclose(plain(hidden(), context_of()), other(hidden(), context_of()))


@pytest.mark.parametrize(
    ("names", "formula"),
    [
        (NormNames(), lambda a, m, n: lambda x: (h := x + a(n[0](x))) + m(n[1](h))),
        (BEHIND, lambda a, m, n: lambda x: (h := x + n[0](a(x))) + n[1](m(h))),
        (
            NormNames("one", "two", "three", "four"),
            lambda a, m, n: lambda x: (h := x + n[1](a(n[0](x)))) + n[3](m(n[2](h))),
        ),
    ],
    ids=["before", "behind", "both"],
)
def test_norms_stand_where_their_names_say(names: NormNames, formula: Callable[..., Any]) -> None:
    block = Block(attention_of(), GatedMLP(24, 40), dim=24, norm=RMSNorm, names=names)
    norms = [block.get_submodule(name) for name in names if name is not None]
    for number, norm in enumerate(norms):
        norm.weight.data = torch.rand(24, generator=torch.Generator().manual_seed(number))
    assert {name for name, _ in block.named_children()} == {"self_attn", "mlp", *filter(None, names)}
    expected = formula(lambda x: block.self_attn(x, context_of()), block.mlp, norms)(hidden())
    torch.testing.assert_close(block(hidden(), context_of()), expected)


def test_dropout_is_off_when_a_model_is_evaluated() -> None:
    block = Block(attention_of(), GatedMLP(24, 40), dim=24, norm=RMSNorm, dropout=0.5)
    assert not torch.equal(block(hidden(), context_of()), block(hidden(), context_of()))
    block.eval()
    assert torch.equal(block(hidden(), context_of()), block(hidden(), context_of()))


def model_of(**options: Any) -> DecoderModel:
    def build_block(index: int) -> Block:
        attention = GroupedQueryAttention(CONFIG, index, Rotary(8), **options)
        return Block(attention, GatedMLP(24, 40), dim=24, norm=RMSNorm)

    return DecoderModel(CONFIG, build_block, tied=True)


def test_operations_are_those_that_torch_counts() -> None:
    """torch counts every score of the square, also those that are not seen; ours are of the seen ones."""
    model = model_of(fused=True)
    ids = torch.arange(LENGTH)[None]
    zeros = torch.zeros_like(ids)
    model.attention = lambda q, k, v, context, **options: q * k.mean() * v.mean()
    with FlopCounterMode(display=False) as counter:
        model.head(model(Batch(ids, zeros, ids, zeros).with_index())).sum().backward()
    seen = 12 * 32 * CONFIG.n_layers * tokens_seen(LENGTH, None)
    assert counter.get_total_flops() == pytest.approx((model.flops_per_token(LENGTH) - seen) * LENGTH)


@pytest.mark.parametrize("window", [None, 1, 7, 30, 50])
def test_a_window_costs_what_it_sees(window: int | None) -> None:
    seen = [min(place + 1, window or 30) for place in range(30)]
    assert tokens_seen(30, window) == pytest.approx(sum(seen) / 30)
    costs = [model_of(**options).flops_per_token(30) for options in ({}, {"window": window})]
    assert costs[0] - costs[1] == pytest.approx(12 * 32 * CONFIG.n_layers * (15.5 - tokens_seen(30, window)))
