"""The shape of the kit's own model."""

from __future__ import annotations

from pydantic import Field

from mt_core import ModelConfig


class TinyConfig(ModelConfig):
    """The shape."""

    dim: int = Field(16, gt=0, le=1_048_576, multiple_of=4, description="width of the hidden states (channels)")
    n_layers: int = Field(2, gt=0, le=10_000, description="transformer blocks")
