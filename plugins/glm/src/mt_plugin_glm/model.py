"""GLM-4 of April 2025 (https://arxiv.org/abs/2406.12793, https://github.com/zai-org/GLM-4).

Names of parameters are those of the published checkpoints.
"""

from __future__ import annotations

from functools import partial

from mt_core.nn import Block, DecoderModel, GatedMLP, GroupedQueryAttention, NormNames, RMSNorm, Rotary

from .config import GlmConfig

NORMS = NormNames("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


class Glm(DecoderModel):
    """Blocks of attention and gated MLP, normed before and behind each. The base class gives the rest."""

    config: GlmConfig
    default_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj")

    def __init__(self, config: GlmConfig) -> None:
        rotary = Rotary(config.rotary_width, theta=config.rope_theta, scaling=config.rope_scaling)
        super().__init__(config, partial(build_block, config, rotary), tied=config.tie_embeddings)


def build_block(config: GlmConfig, rotary: Rotary, index: int) -> Block:
    """Build one block."""
    attention = GroupedQueryAttention(config, index, rotary, bias=config.attention_bias, interleaved=True)
    mlp = GatedMLP(config.dim, config.ffn_dim, fused=True)
    return Block(attention, mlp, dim=config.dim, norm=partial(RMSNorm, eps=config.norm_eps), names=NORMS)
