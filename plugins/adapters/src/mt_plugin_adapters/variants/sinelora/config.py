"""Options of SineLoRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class SineLoraConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    frequency: float = Field(
        200.0, gt=0, description="ω, which the product of the pair is multiplied by inside the sine"
    )
    gain: float | None = Field(
        None, gt=0, description="g, which the sine is divided by; none is the square root of the inputs"
    )
