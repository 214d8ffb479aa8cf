"""Options of ReLoRA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..plora.config import StagedConfig


class ReloraConfig(StagedConfig):
    """See ``StagedConfig``."""

    every_steps: int = Field(1000, gt=0, description="updates between two merges; the schedule's reset_steps")
    pruned: float = Field(0.99, ge=0, le=1, description="share of the optimizer's moments that is set to 0 at a merge")
    pruning: Literal["magnitude", "random"] = Field("magnitude", description="the smallest of them, or ones drawn")
