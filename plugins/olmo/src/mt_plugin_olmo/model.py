"""OLMo 2 (https://arxiv.org/abs/2501.00656) and OLMo 3 (https://arxiv.org/abs/2512.13961).

Names of parameters are those of the published checkpoints.
"""

from __future__ import annotations

from functools import partial

from mt_core.nn import Block, DecoderModel, GatedMLP, GroupedQueryAttention, NormNames, RMSNorm, Rotary

from .config import OlmoConfig

NORMS_BEHIND = NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm")


class Olmo(DecoderModel):
    """Blocks of attention and gated MLP, normed behind each. The base class gives the rest."""

    config: OlmoConfig

    def __init__(self, config: OlmoConfig) -> None:
        everywhere = Rotary(config.head_width, theta=config.rope_theta, scaling=config.rope_scaling)
        plain = Rotary(config.head_width, theta=config.rope_theta)
        super().__init__(
            config,
            lambda index: build_block(config, everywhere if config.window_of(index) is None else plain, index),
            tied=config.tie_embeddings,
        )


def build_block(config: OlmoConfig, rotary: Rotary, index: int) -> Block:
    """Build one block."""
    norm = partial(RMSNorm, eps=config.norm_eps)
    window = config.window_of(index)
    attention = GroupedQueryAttention(config, index, rotary, qk_norm="all", norm=norm, window=window)
    return Block(attention, GatedMLP(config.dim, config.ffn_dim), dim=config.dim, norm=norm, names=NORMS_BEHIND)
