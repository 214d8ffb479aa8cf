"""Options of PLoRA, and of what else is trained in stages."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class StagedConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    every_steps: int = Field(200, gt=0, description="length of a stage (updates)")


class PloraConfig(StagedConfig):
    """See ``StagedConfig``."""

    momentum: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share m of the update BA that a stage merges; A and B go on at 1 - m of themselves. None merges all, and both begin"
        " anew",
    )
