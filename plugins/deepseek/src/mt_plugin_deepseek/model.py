"""DeepSeek V2 (https://arxiv.org/abs/2405.04434) and V3 (https://arxiv.org/abs/2412.19437).

Names of parameters are those of the published checkpoints. Shapes: B rows, T tokens, n = B T of them, D model width,
X experts.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from mt_core import ExpertLayout
from mt_core.nn import (
    AdapterContext,
    Block,
    BlockContext,
    Decoder,
    DecoderModel,
    Experts,
    GatedMLP,
    RMSNorm,
    Rotary,
    Router,
    RouterOptions,
)

from .attention import LatentAttention
from .config import DeepseekConfig

CHOICE_BIAS = "gate.e_score_correction_bias"


class Deepseek(DecoderModel):
    """Embed, blocks, norm, head. The base class gives ``forward``."""

    config: DeepseekConfig
    default_targets = (
        *("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )
    residual_outputs = (*DecoderModel.residual_outputs, "experts.down_proj")
    kept = (f"*.{CHOICE_BIAS}",)

    def __init__(self, config: DeepseekConfig) -> None:
        rotary = Rotary(config.rope_dim, theta=config.rope_theta, scaling=config.rope_scaling, interleaved=True)
        norm = partial(RMSNorm, eps=config.norm_eps)
        blocks = (
            Block(LatentAttention(config, index, rotary), make_mlp(config, index), dim=config.dim, norm=norm)
            for index in range(config.n_layers)
        )
        decoder = Decoder(nn.Embedding(config.vocab_size, config.dim), blocks, norm(config.dim))
        super().__init__(config, decoder, tied=config.tie_embeddings)

    @property
    def steps(self) -> bool:
        """Return whether the choice of experts is balanced by its bias."""
        return self.config.balance_rate > 0

    def after_step(self, context: AdapterContext) -> None:
        """Move each expert's bias by ``balance_rate``: up where fewer tokens than the mean of the step chose it, down where more.

        https://arxiv.org/abs/2408.15664, algorithm 1, with the counts of the whole step.
        """
        for name, module in context.modules():
            ...


def make_mlp(config: DeepseekConfig, index: int) -> nn.Module:
    """Return the MLP of one block: dense at the bottom, a mixture above."""
    return GatedMLP(config.dim, config.ffn_dim) if index < config.n_dense else Mixture(config, index)


class Mixture(nn.Module):
    """Experts of which each token goes to a few, and beside them a gated MLP for all tokens, as wide as so many shared experts."""

    def __init__(self, config: DeepseekConfig, index: int) -> None:
        super().__init__()
        self.counts = f"experts of block {index}"
        is_v3 = config.generation == 3
        options = RouterOptions(
            n_experts=config.n_experts,
            top_k=config.top_k,
            gate="sigmoid" if is_v3 else "softmax",
            normalise=config.normalise,
            scale=config.routed_scale,
            n_groups=config.n_groups,
            top_groups=config.top_groups,
            group_score="best-two" if is_v3 else "best",
            choice_bias=is_v3,
        )
        self.gate = Router(options, config.dim)
        self.experts = Experts(
            ExpertLayout(n_experts=config.n_experts, width=config.dim, hidden=config.expert_dim)
        )
        self.shared_experts = GatedMLP(config.dim, config.n_shared * config.expert_dim)
        self.active = 3 * config.dim * config.expert_dim * config.top_k

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x_nD = x_BTD.flatten(0, 1)
        choice = self.gate(x_nD)
        out_nD: Tensor = self.experts(x_nD, choice)
        shared_BTD: Tensor = self.shared_experts(x_BTD)
        return out_nD.view_as(x_BTD) + shared_BTD

    def flops_per_token(self, length: int) -> float:
        """6 per weight that a token meets."""
        router = self.gate.weight.shape[0] * self.gate.weight.shape[1]
        return 6.0 * (self.active + router) + self.shared_experts.flops_per_token(length)
