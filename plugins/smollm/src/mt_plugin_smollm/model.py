"""SmolLM3 (https://huggingface.co/HuggingFaceTB/SmolLM3-3B). Names of parameters are those of the published checkpoints."""

from __future__ import annotations

from functools import partial

from mt_core.nn import Block, DecoderModel, GatedMLP, GroupedQueryAttention, RMSNorm, Rotary

from .config import SmolLMConfig


class SmolLM(DecoderModel):
    """Blocks of attention and gated MLP, some without positions. The base class gives the rest."""

    config: SmolLMConfig

    def __init__(self, config: SmolLMConfig) -> None:
        rotary = Rotary(config.head_width, theta=config.rope_theta, scaling=config.rope_scaling)
        super().__init__(config, partial(build_block, config, rotary), tied=config.tie_embeddings)


def build_block(config: SmolLMConfig, rotary: Rotary, index: int) -> Block:
    """Build one block."""
    turned = rotary if config.has_rope(index) else None
    attention = GroupedQueryAttention(config, index, turned, window=config.window_of(index))
    norm = partial(RMSNorm, eps=config.norm_eps)
    return Block(attention, GatedMLP(config.dim, config.ffn_dim), dim=config.dim, norm=norm)
