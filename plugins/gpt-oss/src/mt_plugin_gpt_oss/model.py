"""gpt-oss (https://arxiv.org/abs/2508.10925).

Names of parameters are those of the published checkpoints. Shapes: B rows, T tokens, n = B T of them, D model width,
N query heads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from mt_core import RouterOptions
from mt_core.nn import (
    Block,
    DecoderModel,
    Experts,
    GroupedQueryAttention,
    Mixture,
    RMSNorm,
    Rotary,
    Router,
    clamped_swiglu,
)

from .config import GptOssConfig


class GptOss(DecoderModel):
    """Embed, blocks, norm, head. The base class gives ``forward``."""

    config: GptOssConfig

    def __init__(self, config: GptOssConfig) -> None:
        rotary = Rotary(config.head_width, theta=config.rope_theta, scaling=config.rope_scaling)
        super().__init__(config, partial(build_block, config, rotary), tied=config.tie_embeddings)


def build_block(config: GptOssConfig, rotary: Rotary, index: int) -> Block:
    """Build one block."""
    attention, mixture = Attention(config, index, rotary), build_mixture(config, index)
    return Block(attention, mixture, dim=config.dim, norm=partial(RMSNorm, eps=config.norm_eps))


class Attention(GroupedQueryAttention):
    """Grouped queries with biases, in a window in every other block; each head may look away from all tokens.

    ``sinks`` are that head's score of nothing: it takes part in the softmax and adds no value.
    """

    def __init__(self, config: GptOssConfig, index: int, rotary: Rotary) -> None:
        super().__init__(config, index, rotary, bias=True, out_bias=True, window=config.window_of(index))
        self.sinks = nn.Parameter(torch.zeros(config.n_heads))

    def attention_options(self) -> Any:
        return {**super().attention_options(), "sinks_N": self.sinks}


def build_mixture(config: GptOssConfig, index: int) -> Mixture:
    """Experts, of which each token goes to the few with the best scores; their weights are a softmax over these scores alone."""
    options = RouterOptions(n_experts=config.n_experts, top_k=config.top_k, order="choose-first", bias=True)
    activation = partial(clamped_swiglu, limit=config.swiglu_limit, alpha=config.swiglu_alpha)
    return Mixture(
        Router(options, config.dim), Experts(config.expert_layout, activation), index=index, router_name="router"
    )
