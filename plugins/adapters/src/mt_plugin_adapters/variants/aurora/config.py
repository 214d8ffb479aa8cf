"""Options of AuroRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class AuroraConfig(LowRankConfig):
    """See ``LowRankConfig``; the paper trains it with a rank of 2."""

    rank: int = Field(2, gt=0, le=65_536, description="inner dimension of the pair")
