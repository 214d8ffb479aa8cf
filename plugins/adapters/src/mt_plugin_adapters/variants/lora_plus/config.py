"""Options of LoRA+."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class LoraPlusConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    ratio: float = Field(16.0, gt=0, description="learning rate of B, as a multiple of optimizer.lr, which A has")
