"""Attention as transformers' models ask for it: sinks, narrow values, and chunks that stand in a mask only.

Shapes: B rows, T tokens, N query heads, K key/value heads, H head width, W width of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests.huggingface import tiny_models
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.masking_utils import (
    causal_mask_function,
    create_causal_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama4 import modeling_llama4

from mt_core import UsageError
from mt_core.nn import BlockContext, SdpaAttention
from mt_plugin_huggingface.attention import NAME, Rule, _Mask, attend, read_rules, register, use_context
from mt_plugin_huggingface.frame import Frame
from mt_plugin_huggingface.types import ModelType

ROWS, TOKENS, HEADS, KV_HEADS = 2, 23, 4, 2


def context_of(lengths: tuple[int, ...] = (TOKENS,)) -> BlockContext:
    ids_BT = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).expand(ROWS, -1)
    return BlockContext(ids_BT, ids_BT, SdpaAttention(), document_lengths=(lengths,) * ROWS)


class Asking(nn.Module):
    """As the attention modules of transformers look to their eager function."""

    num_key_value_groups = HEADS // KV_HEADS

    def __init__(self, sinks: Tensor | None) -> None:
        super().__init__()
        self.sinks = sinks


def alone(
    theirs: ModuleType, make: Callable[..., Any], values: dict[str, int], lengths: tuple[int, ...], given: list[Tensor]
) -> Tensor:
    """(B, T, N, W): each document by itself, with the mask that transformers makes for eager attention."""
    q, k, v, sinks = given
    config = SimpleNamespace(_attn_implementation="eager", is_causal=True, **values)
    outs = []
    for one in zip(*(each.split(list(lengths), 2) for each in (q, k, v)), strict=True):
        mask = make(config, one[0][:, 0], None, None)
        outs.append(theirs.eager_attention_forward(Asking(sinks), *one, mask, scaling=0.3)[0])
    return torch.cat(outs, 1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("lengths", [(TOKENS,), (9, 14)])
@pytest.mark.parametrize(
    ("theirs", "make", "values", "rule", "with_sinks", "width"),
    [
        (modeling_gpt_oss, create_causal_mask, {}, Rule(), True, 8),
        (modeling_gpt_oss, create_sliding_window_causal_mask, {"sliding_window": 6}, Rule(window=6), True, 8),
        (modeling_llama4, create_chunked_causal_mask, {"attention_chunk_size": 5}, Rule(chunk=5), False, 8),
        (modeling_llama4, create_causal_mask, {}, Rule(), False, 8),
        (modeling_deepseek_v3, create_causal_mask, {}, Rule(), False, 6),
    ],
)
def test_values_and_gradients_equal_transformers_eager_functions(
    theirs: ModuleType,
    make: Callable[..., Any],
    values: dict[str, int],
    rule: Rule,
    with_sinks: bool,
    width: int,
    lengths: tuple[int, ...],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """DeepSeek-V3's rounds its weights to fp32 in fp64 too."""
    if theirs is modeling_deepseek_v3:
        tolerance = 1e-5
    generator = torch.Generator().manual_seed(0)
    shapes = [(ROWS, HEADS, TOKENS, 8), (ROWS, KV_HEADS, TOKENS, 8), (ROWS, KV_HEADS, TOKENS, width), (HEADS,)]
    leaves = [torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]
    q, k, v, sinks = leaves
    expected = alone(theirs, make, values, lengths, leaves)
    leaves = leaves if with_sinks else leaves[:3]
    with use_context(context_of(lengths), rule):
        asked: dict[str, Any] = {"s_aux": sinks if with_sinks else None, "sliding_window": rule.window}
        out, _ = attend(Asking(None), q, k, v, None, scaling=0.3, **asked)
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    grad = torch.randn(out.shape, generator=generator, dtype=dtype)
    for got, wanted in zip(
        torch.autograd.grad(out, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


def frame_of(kind: str, **changes: Any) -> tuple[nn.Module, Frame]:
    """A small model with our attention, and its frame."""
    register()
    config = CONFIG_MAPPING[kind](**{**tiny_models.config_of(kind).to_dict(), **changes})
    model = AutoModelForCausalLM.from_config(config)
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation"):
            module.config._attn_implementation_internal = NAME
    paths = {"embed": "model.embed_tokens", "blocks": "model.layers", "norm": "model.norm", "head": "lm_head"}
    entry = ModelType(name=kind, architecture="", names={}, defaults={}, plain_head=True, **paths)
    return model, Frame(model, entry)


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        (
            "llama4_text",
            {"attention_chunk_size": 7, "num_local_experts": 2, "intermediate_size_mlp": 16},
            [Rule(chunk=7), Rule(), Rule(chunk=7)],
        ),
        ("gemma2", {}, [Rule(window=6), Rule(), Rule(window=6)]),
        ("llama", {}, [Rule()] * 3),
    ],
)
def test_what_each_block_sees_is_read_off_the_models_own_masks(
    kind: str, changes: dict[str, Any], expected: list[Rule]
) -> None:
    model, frame = frame_of(kind, **changes)
    context = BlockContext(torch.arange(2)[None], torch.zeros(1, 2, dtype=torch.long), SdpaAttention())
    run = lambda: frame.run(torch.zeros(1, 2, 32), context)  # noqa: E731
    assert read_rules(model, run) == expected
    assert all(call.named["attention_mask"] is None for call in run()), "afterwards no mask is made, as before"


def test_a_mask_of_another_pattern_is_refused() -> None:
    model, frame = frame_of("gemma3_text", use_bidirectional_attention=True)
    context = BlockContext(torch.arange(2)[None], torch.zeros(1, 2, dtype=torch.long), SdpaAttention())
    with pytest.raises(UsageError, match="neither causal nor a window nor chunks"):
        read_rules(model, lambda: frame.run(torch.zeros(1, 2, 32), context))
    assert model.config._attn_implementation == NAME


def test_a_pattern_on_top_of_a_rule_is_refused_though_some_pairs_look_alike() -> None:
    with pytest.raises(UsageError, match="neither causal nor a window nor chunks"):
        _Mask(causal_mask_function, use_vmap=True).rule()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "is_causal=False"),
        ({"sliding_window": 4}, "a window of 4 where its mask has None"),
        ({"s_aux": torch.zeros(3)}, "one for each of the 4 query heads"),
    ],
)
def test_what_attention_does_not_do_is_refused_by_name(asked: dict[str, Any], message: str) -> None:
    q, k = torch.randn(ROWS, HEADS, TOKENS, 8), torch.randn(ROWS, KV_HEADS, TOKENS, 8)
    with use_context(context_of(), Rule()), pytest.raises(UsageError, match=message):
        attend(Asking(None), q, k, k, None, **asked)


def test_a_window_that_stands_in_the_mask_alone_is_kept() -> None:
    """As in phimoe, whose attention is asked for none."""
    q, k = torch.randn(ROWS, HEADS, TOKENS, 8), torch.randn(ROWS, KV_HEADS, TOKENS, 8)
    expected = alone(
        modeling_gpt_oss,
        create_sliding_window_causal_mask,
        {"sliding_window": 6},
        (9, 14),
        [q, k, k, torch.full((HEADS,), -torch.inf)],
    )
    with use_context(context_of((9, 14)), Rule(window=6)):
        out, _ = attend(Asking(None), q, k, k, None, scaling=0.3)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
