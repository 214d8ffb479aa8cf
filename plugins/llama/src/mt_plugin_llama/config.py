"""The shape of a Llama model, as data. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from mt_core import DecoderConfig


class LlamaConfig(DecoderConfig):
    """A decoder's sizes; biases and dropout beside them."""

    scalings = ("none", "linear", "dynamic", "yarn", "llama3", "longrope")
    norm_eps: float = Field(1e-5, gt=0, lt=1, description="added to the mean square in RMSNorm")
    attention_bias: bool = Field(False, description="biases in the four attention projections")
    mlp_bias: bool = Field(False, description="biases in the three MLP projections")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="share of what attention and MLP add that is set to 0 in training"
    )
