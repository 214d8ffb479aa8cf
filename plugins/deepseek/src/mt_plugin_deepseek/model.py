"""DeepSeek V2 (https://arxiv.org/abs/2405.04434) and V3 (https://arxiv.org/abs/2412.19437).

Names of parameters are those of the published checkpoints. Shapes: B rows, T tokens, n = B T of them, D model width,
X experts.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from mt_core import AdapterContext, RouterOptions
from mt_core.nn import (
    Block,
    DecoderModel,
    Experts,
    GatedMLP,
    Mixture,
    RMSNorm,
    Rotary,
    Router,
    balance_by_bias,
)

from .attention import LatentAttention
from .config import DeepseekConfig

CHOICE_BIAS = "gate.e_score_correction_bias"


class Deepseek(DecoderModel):
    """Embed, blocks, norm, head. The base class gives ``forward``."""

    config: DeepseekConfig
    kept = (f"*.{CHOICE_BIAS}",)

    def __init__(self, config: DeepseekConfig) -> None:
        rotary = Rotary(config.rope_dim, theta=config.rope_theta, scaling=config.rope_scaling)
        super().__init__(config, partial(build_block, config, rotary), tied=config.tie_embeddings)
        queries = ("q_proj",) if config.q_rank is None else ("q_a_proj", "q_b_proj")
        others = ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        self.default_targets = (*queries, *others)

    @property
    def steps(self) -> bool:
        """Return whether the choice of experts is balanced by its bias."""
        return self.config.balance_rate > 0

    def after_step(self, context: AdapterContext) -> None:
        """Move each expert's bias by ``balance_rate``: up where fewer tokens than the mean of the step chose it, down where more.

        https://arxiv.org/abs/2408.15664, algorithm 1, with the counts of the whole step.
        """
        balance_by_bias(context, self.config.balance_rate)


def build_block(config: DeepseekConfig, rotary: Rotary, index: int) -> Block:
    """Build one block."""
    attention, mlp = LatentAttention(config, index, rotary), build_mlp(config, index)
    return Block(attention, mlp, dim=config.dim, norm=partial(RMSNorm, eps=config.norm_eps))


def build_mlp(config: DeepseekConfig, index: int) -> nn.Module:
    """Return the MLP of one block: dense at the bottom, a mixture above."""
    return GatedMLP(config.dim, config.ffn_dim) if index < config.n_dense else build_mixture(config, index)


def build_mixture(config: DeepseekConfig, index: int) -> Mixture:
    """Experts of which each token goes to a few, and beside them a gated MLP for all tokens, as wide as the shared experts together."""
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
    shared = GatedMLP(config.dim, config.n_shared * config.expert_dim)
    return Mixture(Router(options, config.dim), Experts(config.expert_layout), index=index, shared=shared)
