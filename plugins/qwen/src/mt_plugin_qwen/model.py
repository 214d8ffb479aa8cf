"""Qwen 2.5 (https://arxiv.org/abs/2412.15115) and Qwen 3 (https://arxiv.org/abs/2505.09388), dense and with experts.

Names of parameters are those of the published checkpoints.
"""

from __future__ import annotations

from functools import partial

from mt_core import ExpertLayout
from mt_core.nn import (
    Block,
    DecoderModel,
    Experts,
    GatedMLP,
    GroupedQueryAttention,
    LossFactor,
    Mixture,
    RMSNorm,
    Rotary,
    Router,
)

from .config import QwenConfig


class Qwen(DecoderModel):
    """Blocks of attention and gated MLP, or experts. The base class gives the rest."""

    config: QwenConfig
    residual_outputs = ()

    def __init__(self, config: QwenConfig) -> None:
        rotary = Rotary(config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling)
        super().__init__(
            config,
            lambda index: build_block(config, rotary, index, self.loss_factor),
            tied=config.tie_embeddings,
        )


def build_block(config: QwenConfig, rotary: Rotary, index: int, factor: LossFactor) -> Block:
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
    mlp = build_mixture(config, index, factor) if config.is_mixture(index) else GatedMLP(config.dim, config.ffn_dim)
    return Block(attention, mlp, dim=config.dim, norm=norm)


def build_mixture(config: QwenConfig, index: int, factor: LossFactor) -> Mixture:
    """Build what a block has in the place of its MLP. The load is balanced by a loss, if at all."""
    options = config.router()
    layout = ExpertLayout(n_experts=options.n_experts, width=config.dim, hidden=config.expert_dim)
    return Mixture(Router(options, config.dim), Experts(layout), index=index, balance=config.balance, factor=factor)
