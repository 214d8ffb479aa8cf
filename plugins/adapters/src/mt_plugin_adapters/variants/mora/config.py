"""Options of MoRA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mt_plugin_adapters.rank_config import RankConfig


class MoraConfig(RankConfig):
    """See ``RankConfig``."""

    rank: int = Field(8, gt=0, le=65_536, description="rank of a LoRA with as many parameters")
    form: Literal["rotation", "sharing"] = Field(
        "rotation", description="how inputs get to the square matrix, and out of it"
    )
