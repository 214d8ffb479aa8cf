"""Options of NoRA."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_core import LowRankConfig


class NoraConfig(LowRankConfig):
    """``rank`` is that of the outer, frozen matrices."""

    rank: int = Field(32, gt=0, le=65_536, description="rank of the frozen outer pair")
    inner_rank: int = Field(4, gt=0, le=65_536, description="rank of the trained inner pair")

    @model_validator(mode="after")
    def _inside(self) -> Self:
        least = min((self.rank, *self.ranks.values()))
        if self.inner_rank > least:
            raise ValueError(
                f"inner_rank={self.inner_rank} is more than the rank of the outer pair, {least}; set it to at most that"
            )
        return self
