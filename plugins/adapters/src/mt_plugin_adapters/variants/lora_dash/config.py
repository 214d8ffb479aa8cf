"""Options of LoRA-Dash."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class DashConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    explore_steps: int = Field(100, gt=0, description="updates before the directions are chosen")
    directions: int = Field(8, gt=0, le=65_536, description="number of chosen directions; a layer with fewer uses all")
