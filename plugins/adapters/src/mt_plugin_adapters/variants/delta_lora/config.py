"""Options of Delta-LoRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class DeltaLoraConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    dropout: float = Field(0.0, ge=0, le=0, description="always 0: the method has none")
    ratio: float = Field(0.5, gt=0, description="share of the change of the product that goes into the weight")
    start_steps: int = Field(100, ge=0, description="updates before the weight begins to move")
