"""Mistral, Ministral (https://arxiv.org/abs/2310.06825) and Mixtral (https://arxiv.org/abs/2401.04088).

Names of parameters are those of the published checkpoints; transformers 5 calls Mixtral's ``block_sparse_moe`` ``mlp``, as here.
"""

from __future__ import annotations

from functools import partial

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

from .config import MistralConfig


class Mistral(DecoderModel):
    """Blocks of attention with windows, and gated MLP or experts. The base class gives the rest."""

    config: MistralConfig

    def __init__(self, config: MistralConfig) -> None:
        rotary = Rotary(config.head_width, theta=config.rope_theta, scaling=config.rope_scaling)
        super().__init__(
            config,
            lambda index: build_block(config, rotary, index, self.loss_factor),
            tied=config.tie_embeddings,
        )
        if config.n_experts is not None:  # as the files of Mixtral call an expert's projections
            self.default_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3")


def build_block(config: MistralConfig, rotary: Rotary, index: int, factor: LossFactor) -> Block:
    """Build one block."""
    attention = GroupedQueryAttention(config, index, rotary, window=config.window_of(index))
    dense = config.n_experts is None
    mlp = GatedMLP(config.dim, config.ffn_dim) if dense else build_mixture(config, index, factor)
    return Block(attention, mlp, dim=config.dim, norm=partial(RMSNorm, eps=config.norm_eps))


def build_mixture(config: MistralConfig, index: int, factor: LossFactor) -> Mixture:
    """Build what a block of Mixtral has in the place of its MLP. The load is balanced by a loss, if at all."""
    router, experts = Router(config.router(), config.dim), Experts(config.expert_layout)
    return Mixture(router, experts, index=index, balance=config.balance, factor=factor)
