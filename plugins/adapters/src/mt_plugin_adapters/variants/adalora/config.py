"""Options of AdaLoRA."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_core import LowRankConfig


class AdaLoraConfig(LowRankConfig):
    """``rank`` is the one that every projection begins with."""

    rank: int = Field(12, gt=0, le=65_536, description="rank of every projection at first")
    target_rank: int = Field(
        8, gt=0, le=65_536, description="ranks that are left at the end, on average over the projections"
    )
    initial_ratio: float = Field(0.1, ge=0, lt=1, description="share of the run before the first rank is pruned")
    final_ratio: float = Field(0.3, ge=0, lt=1, description="share of the run after the last rank was pruned")
    every_steps: int = Field(10, gt=0, description="updates between two prunings")
    orthogonality: float = Field(0.1, ge=0, description="weight of the term that holds P and Q near orthogonal")
    sensitivity_decay: float = Field(0.85, gt=0, lt=1, description="decay of the running mean of sensitivities")
    uncertainty_decay: float = Field(0.85, gt=0, lt=1, description="decay of the running mean of their deviations")

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        least = min((self.rank, *self.ranks.values()))
        if self.target_rank > least:
            raise ValueError(
                f"target_rank={self.target_rank} is more than the first rank, {least}; set it to at most that"
            )
        if self.initial_ratio + self.final_ratio >= 1:
            raise ValueError(
                f"initial_ratio={self.initial_ratio} and final_ratio={self.final_ratio} leave no steps to prune in; their"
                " sum has to be below 1"
            )
        return self
