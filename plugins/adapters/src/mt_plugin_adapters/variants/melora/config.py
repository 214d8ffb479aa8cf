"""Options of MELoRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class MeloraConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    rank: int = Field(
        8, gt=0, le=65_536, description="inner dimension of each small pair; the update has parts times as much"
    )
    parts: int = Field(4, gt=0, le=65_536, description="small LoRAs; divides the inputs and the outputs")
