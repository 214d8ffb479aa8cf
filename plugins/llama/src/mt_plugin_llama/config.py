"""The shape of a Llama model, as data. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from mt_core import ModelConfig, RopeScaling


class LlamaConfig(ModelConfig):
    """Field names follow Meta's ``params.json``; counts start with ``n_``. The base adds ``vocab_size``, ``max_seq_len``."""

    dim: int = Field(gt=0, le=1_048_576, description="width of the hidden states (channels)")
    n_layers: int = Field(gt=0, le=10_000, description="blocks, one on top of the other")
    n_heads: int = Field(gt=0, le=65_536, description="query heads")
    n_kv_heads: int = Field(gt=0, le=65_536, description="key/value heads; n_heads means plain multi-head attention")
    ffn_dim: int = Field(gt=0, le=16_777_216, description="hidden width of the gated MLP (channels)")
    head_dim: int | None = Field(
        None, gt=0, le=65_536, description="width of one head (channels); default dim / n_heads"
    )
    norm_eps: float = Field(1e-5, gt=0, lt=1, description="added to the mean square in RMSNorm")
    rope_theta: float = Field(10_000.0, gt=1, description="base of the rotary wavelengths")
    rope_scaling: RopeScaling = Field(RopeScaling(), description="stretch of the rotary positions")
    tie_embeddings: bool = Field(False, description="the head's weight is the embedding's")
    attention_bias: bool = Field(False, description="biases in the four attention projections")
    mlp_bias: bool = Field(False, description="biases in the three MLP projections")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="share of what attention and MLP add that is set to 0 in training"
    )

    @property
    def head_width(self) -> int:
        """Channels of one head: ``head_dim``, or ``dim / n_heads``."""
        return self.head_dim if self.head_dim is not None else self.dim // self.n_heads

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        faults = [*self._head_faults(), *self._width_faults()]
        if faults:
            raise ValueError(". Also, ".join(faults))
        return self

    def _head_faults(self) -> Iterator[str]:
        if self.n_heads % self.n_kv_heads:
            yield (
                f"n_heads={self.n_heads} is not a multiple of n_kv_heads={self.n_kv_heads}; "
                f"set n_kv_heads to a divisor, or to {self.n_heads} for plain multi-head attention"
            )
        if self.head_dim is None and self.dim % self.n_heads:
            yield (
                f"dim={self.dim} is not a multiple of n_heads={self.n_heads}; "
                "set n_heads to a divisor of dim, or set head_dim"
            )

    def _width_faults(self) -> Iterator[str]:
        if self.head_width < 1 or self.head_width % 2:
            yield (
                f"a head has {self.head_width} channels, and rotary positions turn pairs; "
                "set head_dim to an even number, or change dim / n_heads"
            )
        elif self.head_width == 2 and self.rope_scaling.type == "dynamic":
            yield (
                "a head has 2 channels, and dynamic scaling divides by the others; "
                "set head_dim to 4 or more, or choose another rope_scaling.type"
            )
