"""Phi-3 and 4 (https://arxiv.org/abs/2404.14219, https://arxiv.org/abs/2412.08905).

Names of parameters are those of the published checkpoints.
"""

from __future__ import annotations

from functools import partial

from mt_core.nn import Block, DecoderModel, GatedMLP, GroupedQueryAttention, RMSNorm, Rotary

from .config import PhiConfig


class Phi(DecoderModel):
    """Blocks with one matrix for queries, keys and values, and one for gate and up. The base class gives the rest."""

    config: PhiConfig
    default_targets = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")

    def __init__(self, config: PhiConfig) -> None:
        rotary = Rotary(config.rotary_width, theta=config.rope_theta, scaling=config.rope_scaling)
        super().__init__(config, partial(build_block, config, rotary), tied=config.tie_embeddings)


def build_block(config: PhiConfig, rotary: Rotary, index: int) -> Block:
    """Build one block."""
    attention = GroupedQueryAttention(config, index, rotary, fused=True, window=config.window)
    mlp = GatedMLP(config.dim, config.ffn_dim, fused=True)
    return Block(attention, mlp, dim=config.dim, norm=partial(RMSNorm, eps=config.norm_eps))
