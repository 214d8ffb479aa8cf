"""Options of the objectives that predict tokens."""

from __future__ import annotations

from pydantic import Field

from mt_core import MtConfig


class TokenLossConfig(MtConfig):
    """What a token's loss is made of, in training; evaluations have the plain cross-entropy."""

    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target that is spread evenly over the vocabulary (0 is off)"
    )
    z_loss: float = Field(0.0, ge=0, description="factor of log² of the softmax's normaliser, often 1e-4 (0 is off)")
