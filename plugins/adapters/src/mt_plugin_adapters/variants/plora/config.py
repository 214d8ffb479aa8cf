"""Options of PLoRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class PloraConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    every_steps: int = Field(200, gt=0, description="length of a stage (updates)")
