"""Qwen 2.5 (https://arxiv.org/abs/2412.15115) and Qwen 3 (https://arxiv.org/abs/2505.09388), dense.

Names of parameters are those of the published checkpoints.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from mt_core.nn import Block, Decoder, DecoderModel, GatedMLP, GroupedQueryAttention, RMSNorm, Rotary

from .config import QwenConfig


class Qwen(DecoderModel):
    """Blocks of attention and gated MLP. The base class gives the rest."""

    config: QwenConfig
    residual_outputs = ()

    def __init__(self, config: QwenConfig) -> None:
        rotary = Rotary(config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling)
        decoder = Decoder(
            nn.Embedding(config.vocab_size, config.dim),
            [build_block(config, index, rotary) for index in range(config.n_layers)],
            RMSNorm(config.dim, eps=config.norm_eps),
        )
        super().__init__(config, decoder, tied=config.tie_embeddings)


def build_block(config: QwenConfig, index: int, rotary: Rotary) -> Block:
    """Build one block: biases of queries, keys and values in generation 2, norms of each head in generation 3."""
    norm = partial(RMSNorm, eps=config.norm_eps)
    attention = GroupedQueryAttention(
        config,
        index,
        rotary,
        bias=config.generation == 2,
        qk_norm="head" if config.generation == 3 else None,
        norm=norm,
        window=config.window_of(index),
    )
    return Block(attention, GatedMLP(config.dim, config.ffn_dim), dim=config.dim, norm=norm)
