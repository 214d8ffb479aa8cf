"""Options of IncreLoRA."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_core import LowRankConfig


class IncreLoraConfig(LowRankConfig):
    """``rank`` is the one that every projection begins with."""

    rank: int = Field(1, gt=0, le=65_536, description="rank of every projection at first")
    target_rank: int = Field(8, gt=0, le=65_536, description="ranks at the end, on average over the projections")
    max_rank: int = Field(32, gt=0, le=65_536, description="largest rank of a projection; memory is allocated for it")
    grow_by: int = Field(4, gt=0, le=65_536, description="ranks that a projection gets at once, and has in reserve")
    top: int = Field(8, gt=0, description="projections that grow at once: the most important ones")
    warmup_steps: int = Field(100, ge=0, description="updates before the first may grow")
    every_steps: int = Field(50, gt=0, description="updates between two growths")
    orthogonality: float = Field(0.1, ge=0, description="weight of the term that holds A and B near orthonormal")
    importance_decay: float = Field(0.85, gt=0, lt=1, description="decay of the running mean of importances")
    uncertainty_decay: float = Field(0.85, gt=0, lt=1, description="decay of the running mean of their deviations")

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        first = max((self.rank, *self.ranks.values()))
        if first > self.target_rank:
            raise ValueError(
                f"target_rank={self.target_rank} is less than the first rank, {first}; set it to at least that"
            )
        if self.target_rank > self.max_rank:
            raise ValueError(f"target_rank={self.target_rank} is more than max_rank={self.max_rank}; raise max_rank")
        return self
