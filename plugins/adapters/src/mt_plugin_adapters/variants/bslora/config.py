"""Options of BSLoRA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mt_core import LowRankConfig


class BsLoraConfig(LowRankConfig):
    """See ``LowRankConfig``; ``rank`` is that of a projection's own pair."""

    rank: int = Field(2, gt=0, le=65_536, description="inner dimension of each projection's own pair")
    alpha: float = Field(4.0, gt=0, description="all three updates are multiplied by alpha / rank")
    rank_block: int = Field(2, gt=0, le=65_536, description="rank of the pair that all projections of a block share")
    rank_model: int = Field(2, gt=0, le=65_536, description="rank of the pair that all blocks share")
    fit: Literal["slice", "kron"] = Field("slice", description="how a shared pair gets a projection's size")
    size: int = Field(256, gt=0, le=65_536, description="inputs and outputs of the shared pairs, with fit kron")
