"""Options of variants that have a rank, and no alpha. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from mt_core import TargetConfig


class RankConfig(TargetConfig):
    """What is trained has a rank, and no scale beside it."""

    rank: int = Field(8, gt=0, description="inner dimension of the pair")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of the adapter's inputs set to 0 in training")
    fp32: bool = Field(False, description="compute the adapter's part in fp32, whatever the precision of the run")
