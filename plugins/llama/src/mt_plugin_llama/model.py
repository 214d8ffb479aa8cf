"""Llama 1, 2 and 3.x (https://arxiv.org/abs/2302.13971, https://arxiv.org/abs/2307.09288, https://arxiv.org/abs/2407.21783).

Parameters have the names of Hugging Face's checkpoints.
"""

from __future__ import annotations

from functools import partial

from mt_core.nn import Block, DecoderModel, GatedMLP, GroupedQueryAttention, RMSNorm, Rotary

from .config import LlamaConfig


class Llama(DecoderModel):
    """Blocks of attention and gated MLP, all alike. The base class gives the rest."""

    config: LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        rotary = Rotary(config.head_width, theta=config.rope_theta, scaling=config.rope_scaling)
        super().__init__(config, partial(build_block, config, rotary), tied=config.tie_embeddings)


def build_block(config: LlamaConfig, rotary: Rotary, index: int) -> Block:
    """Build one block; all share the tables of ``rotary``."""
    bias, norm = config.attention_bias, partial(RMSNorm, eps=config.norm_eps)
    attention = GroupedQueryAttention(config, index, rotary, bias=bias, out_bias=bias)
    mlp = GatedMLP(config.dim, config.ffn_dim, bias=config.mlp_bias)
    return Block(attention, mlp, dim=config.dim, norm=norm, dropout=config.dropout)
