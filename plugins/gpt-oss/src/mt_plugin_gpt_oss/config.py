"""The shape of a gpt-oss as a typed config. Imports no torch."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_core import ModelConfig, RopeScaling

SCALINGS = ("none", "linear", "yarn", "llama3")
"""All but ``dynamic``, which no gpt-oss was made with."""


class GptOssConfig(ModelConfig):
    """Counts start with ``n_``; widths are in channels. Source: https://arxiv.org/abs/2508.10925, section 2."""

    dim: int = Field(gt=0, le=1_048_576, description="width of the hidden states (channels)")
    n_layers: int = Field(gt=0, le=10_000, description="blocks, one on top of the other")
    n_heads: int = Field(gt=0, le=65_536, description="query heads")
    n_kv_heads: int = Field(gt=0, le=65_536, description="key/value heads")
    head_dim: int = Field(gt=0, le=65_536, multiple_of=2, description="width of one head (channels)")
    n_experts: int = Field(gt=0, le=65_536, description="experts of a block")
    top_k: int = Field(4, gt=0, le=65_536, description="experts that each token goes to")
    ffn_dim: int = Field(gt=0, le=16_777_216, description="hidden width of one expert (channels)")
    swiglu_alpha: float = Field(1.702, gt=0, description="factor in the sigmoid of the experts' activation (ratio)")
    swiglu_limit: float = Field(7.0, gt=0, description="what goes into the experts' activation is cut off at ± this")
    window: int = Field(128, gt=0, description="tokens that a local block sees, itself included")
    global_every: int = Field(
        2, gt=0, description="each so-many-th block is global, the others have the window; 1 makes all global"
    )
    norm_eps: float = Field(1e-5, gt=0, lt=1, description="added to the mean square in RMSNorm")
    rope_theta: float = Field(150_000.0, gt=1, description="base of the rotary wavelengths")
    rope_scaling: RopeScaling = Field(RopeScaling(), description="stretch of the rotary positions")
    tie_embeddings: bool = Field(False, description="the head's weight is the embedding's")

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads={self.n_heads} is not a multiple of n_kv_heads={self.n_kv_heads}; "
                f"set n_kv_heads to a divisor, or to {self.n_heads} for plain multi-head attention"
            )
        return self

    @model_validator(mode="after")
    def _experts_are_there(self) -> Self:
        if self.top_k > self.n_experts:
            raise ValueError(f"top_k={self.top_k} of n_experts={self.n_experts}; set top_k to {self.n_experts} or less")
        return self

    @model_validator(mode="after")
    def _scaling_is_known(self) -> Self:
        if self.rope_scaling.type not in SCALINGS:
            raise ValueError(f"rope_scaling.type={self.rope_scaling.type!r} is not gpt-oss's; use one of {SCALINGS}")
        return self

    def window_of(self, index: int) -> int | None:
        """The window of one block (tokens); ``None`` where it sees the whole text."""
        return self.window if (index + 1) % self.global_every else None
