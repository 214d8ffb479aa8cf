"""Mistral and Ministral (https://arxiv.org/abs/2310.06825). Names of parameters are those of the published checkpoints."""

from __future__ import annotations

from functools import partial

from torch import nn

from mt_core.nn import Block, Decoder, DecoderModel, GatedMLP, GroupedQueryAttention, RMSNorm, Rotary

from .config import MistralConfig


class Mistral(DecoderModel):
    """Blocks of attention and gated MLP, with windows. The base class gives the rest."""

    config: MistralConfig

    def __init__(self, config: MistralConfig) -> None:
        rotary = Rotary(config.head_width, theta=config.rope_theta, scaling=config.rope_scaling)
        decoder = Decoder(
            nn.Embedding(config.vocab_size, config.dim),
            [build_block(config, index, rotary) for index in range(config.n_layers)],
            RMSNorm(config.dim, eps=config.norm_eps),
        )
        super().__init__(config, decoder, tied=config.tie_embeddings)


def build_block(config: MistralConfig, index: int, rotary: Rotary) -> Block:
    """Build one block."""
    attention = GroupedQueryAttention(config, index, rotary, window=config.window_of(index))
    norm = partial(RMSNorm, eps=config.norm_eps)
    return Block(attention, GatedMLP(config.dim, config.ffn_dim), dim=config.dim, norm=norm)
