"""The shape of a DeepSeek as a typed config. Imports no torch."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from mt_core import ExpertLayout, ModelConfig, RopeScaling

SCALINGS = ("none", "linear", "yarn", "llama3")
"""Types of ``rope_scaling`` that the family has."""


class DeepseekConfig(ModelConfig):
    """Counts start with ``n_``; widths are in channels.

    Generation 2 (https://arxiv.org/abs/2405.04434) chooses experts by a softmax; generation 3
    (https://arxiv.org/abs/2412.19437) by sigmoids and a bias, which balances the experts and weighs nothing.
    """

    generation: Literal[2, 3] = Field(description="2: DeepSeek V2; 3: DeepSeek V3")
    dim: int = Field(gt=0, le=1_048_576, description="width of the hidden states (channels)")
    n_layers: int = Field(gt=0, le=10_000, description="transformer blocks")
    n_dense: int = Field(1, ge=0, description="blocks at the bottom whose MLP is one; the others have experts")
    n_heads: int = Field(gt=0, le=65_536, description="heads of queries, keys and values")
    q_rank: int | None = Field(
        None,
        gt=0,
        le=1_048_576,
        description="rank of the low-rank query projection (channels); none is one full projection",
    )
    kv_rank: int = Field(
        gt=0, le=1_048_576, description="rank of the latent from which keys and values are computed (channels)"
    )
    nope_dim: int = Field(gt=0, le=65_536, description="width of a head of queries and keys that has no position")
    rope_dim: int = Field(
        gt=0, le=65_536, multiple_of=2, description="width of a head of queries and keys with rotary positions"
    )
    value_dim: int = Field(gt=0, le=65_536, description="width of a head of values (channels)")
    ffn_dim: int = Field(gt=0, le=16_777_216, description="hidden width of the MLP of dense blocks (channels)")
    n_experts: int = Field(gt=0, le=65_536, description="experts of a block among which tokens choose")
    top_k: int = Field(gt=0, le=65_536, description="experts that each token goes to, those of all tokens apart")
    n_shared: int = Field(gt=0, le=65_536, description="experts that all tokens go to")
    expert_dim: int = Field(gt=0, le=16_777_216, description="hidden width of one expert (channels)")
    n_groups: int = Field(1, gt=0, le=65_536, description="groups of experts, of equal size")
    top_groups: int = Field(1, gt=0, le=65_536, description="groups among whose experts a token chooses")
    normalise: bool = Field(False, description="generation 3: a token's weights add up to routed_scale")
    routed_scale: float = Field(1.0, gt=0, description="factor of the chosen experts' outputs (ratio)")
    balance_rate: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="generation 3: how far a step moves each expert's bias against its load; 0 leaves it",
    )
    norm_eps: float = Field(1e-6, gt=0, lt=1, description="added to the mean square in RMSNorm")
    rope_theta: float = Field(10_000.0, gt=1, description="base of the rotary wavelengths")
    rope_scaling: RopeScaling = Field(default_factory=RopeScaling, description="stretch of the rotary positions")
    tie_embeddings: bool = Field(False, description="the head's weight is the embedding's")

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.n_experts % self.n_groups:
            raise ValueError(
                f"n_experts={self.n_experts} are no n_groups={self.n_groups} groups of equal size; "
                "set n_groups to a divisor, or to 1 for none"
            )
        if self.top_groups > self.n_groups:
            raise ValueError(f"top_groups={self.top_groups} of n_groups={self.n_groups}; set it to so many or less")
        within = self.top_groups * self.n_experts // self.n_groups
        if self.top_k > within:
            raise ValueError(
                f"top_k={self.top_k} of the {within} experts in top_groups={self.top_groups}; set it to so many or less"
            )
        if self.generation == 3 and self.n_experts // self.n_groups < 2:
            raise ValueError(
                f"n_groups={self.n_groups} of n_experts={self.n_experts}: generation 3 adds up the two best experts of"
                " a group; set n_groups to half of n_experts or less"
            )
        return self

    @model_validator(mode="after")
    def _generation_has_it(self) -> Self:
        for name in ("normalise", "balance_rate"):
            if self.generation == 2 and getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)} is generation 3's; leave it out")
        if self.n_dense >= self.n_layers:
            raise ValueError(
                f"n_dense={self.n_dense} leaves no block with experts: there are n_layers={self.n_layers}; set it lower"
            )
        if self.rope_scaling.type not in SCALINGS:
            raise ValueError(f"rope_scaling.type={self.rope_scaling.type!r} is not DeepSeek's; use one of {SCALINGS}")
        return self

    @property
    def scale(self) -> float:
        """Factor of the scores: YaRN's temperature for all channels comes to them squared (V2's modeling_deepseek.py)."""
        weight = self.rope_scaling.mscale_all_dim or 0.0
        temperature = 0.1 * weight * math.log(self.rope_scaling.factor) + 1.0
        return temperature**2 / math.sqrt(self.nope_dim + self.rope_dim)

    @property
    def expert_layout(self) -> ExpertLayout:
        """How a block's experts are stored."""
        return ExpertLayout(n_experts=self.n_experts, width=self.dim, hidden=self.expert_dim)

    @property
    def expert_layouts(self) -> dict[str, ExpertLayout]:
        """How each block's experts are stored, by the name of the module that has them."""
        return {f"model.layers.{index}.mlp.experts": self.expert_layout for index in range(self.n_dense, self.n_layers)}
