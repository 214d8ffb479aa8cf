"""Options of GoRA."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from ...probed_config import ProbedConfig


class GoraConfig(ProbedConfig):
    """See ``ProbedConfig``."""

    rslora: bool = Field(True, description="multiply by alpha / sqrt(rank), as the paper does, instead of alpha / rank")
    gamma: float = Field(0.05, gt=0, description="how long the update begins, as a share of the gradient")
    min_rank: int = Field(4, gt=0, le=65_536, description="least rank of a layer")
    max_rank: int = Field(32, gt=0, le=65_536, description="largest rank of a layer; never more than its weight has")
    seed: int = Field(0, ge=0, description="seed of A")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_rank > self.max_rank:
            raise ValueError(
                f"min_rank={self.min_rank} is more than max_rank={self.max_rank}; set min_rank to {self.max_rank} or less"
            )
        return self
