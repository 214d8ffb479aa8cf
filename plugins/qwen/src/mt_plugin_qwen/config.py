"""The shape of a Qwen as a typed config. Imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from mt_core import ModelConfig, RopeScaling

SCALINGS = ("none", "linear", "yarn", "llama3")
"""All but ``dynamic``, which no Qwen was made with."""


class QwenConfig(ModelConfig):
    """Counts start with ``n_``; widths are in channels.

    Generation 2 (Qwen 2 and 2.5, https://arxiv.org/abs/2412.15115) has biases in the projections of queries, keys and
    values; generation 3 (https://arxiv.org/abs/2505.09388) has none, and a norm on each head of queries and keys.
    """

    generation: Literal[2, 3] = Field(description="2: Qwen 2 and 2.5; 3: Qwen 3")
    dim: int = Field(gt=0, le=1_048_576, description="width of the hidden states (channels)")
    n_layers: int = Field(gt=0, le=10_000, description="blocks, one on top of the other")
    n_heads: int = Field(gt=0, le=65_536, description="query heads")
    n_kv_heads: int = Field(gt=0, le=65_536, description="key/value heads")
    head_dim: int = Field(gt=0, le=65_536, multiple_of=2, description="width of one head (channels)")
    ffn_dim: int = Field(gt=0, le=16_777_216, description="hidden width of the gated MLP (channels)")
    norm_eps: float = Field(1e-6, gt=0, lt=1, description="added to the mean square in RMSNorm")
    rope_theta: float = Field(1e6, gt=1, description="base of the rotary wavelengths")
    rope_scaling: RopeScaling = Field(RopeScaling(), description="stretch of the rotary positions")
    tie_embeddings: bool = Field(False, description="the head's weight is the embedding's")
    window: int | None = Field(None, gt=0, description="tokens that a block with a window sees, itself included")
    window_from: int = Field(0, ge=0, description="first block with the window (index); those before it see all")

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads={self.n_heads} is not a multiple of n_kv_heads={self.n_kv_heads}; "
                f"set n_kv_heads to a divisor, or to {self.n_heads} for plain multi-head attention"
            )
        return self

    @model_validator(mode="after")
    def _window_is_somewhere(self) -> Self:
        if self.window is None and self.window_from:
            raise ValueError(f"window_from={self.window_from} without window; set window, or leave window_from out")
        if self.window is not None and self.window_from >= self.n_layers:
            raise ValueError(
                f"window_from={self.window_from} leaves no block with window={self.window}: "
                f"there are n_layers={self.n_layers}; set window_from below it, or window to none"
            )
        return self

    @model_validator(mode="after")
    def _scaling_is_known(self) -> Self:
        if self.rope_scaling.type not in SCALINGS:
            raise ValueError(f"rope_scaling.type={self.rope_scaling.type!r} is not Qwen's; use one of {SCALINGS}")
        return self

    def window_of(self, index: int) -> int | None:
        """The window of one block (tokens); ``None`` where it sees the whole text."""
        return self.window if index >= self.window_from else None
