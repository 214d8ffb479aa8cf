"""Options of RaLoRA and RaLoRA-Pro."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from ...probed_config import ProbedConfig


class RaloraConfig(ProbedConfig):
    """See ``ProbedConfig``. With ``min_rank`` and ``max_rank`` it is RaLoRA-Pro."""

    max_blocks: int = Field(
        32, gt=0, le=65_536, description="most blocks that a layer is cut into; powers of two count"
    )
    min_rank: int | None = Field(
        None,
        gt=0,
        le=65_536,
        description="least rank of a layer, where ranks are moved between layers by importance (RaLoRA-Pro); none leaves them",
    )
    max_rank: int | None = Field(
        None, gt=0, le=65_536, description="largest rank of a layer, beside min_rank; never more than its weight has"
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if (self.min_rank is None) != (self.max_rank is None):
            raise ValueError(
                f"min_rank={self.min_rank} and max_rank={self.max_rank}: ranks are moved between both; set both (half and twice"
                f" the rank are usual: {max(self.rank // 2, 1)} and {2 * self.rank}), or neither"
            )
        if self.min_rank is not None and self.max_rank is not None and self.min_rank > self.max_rank:
            raise ValueError(
                f"min_rank={self.min_rank} is more than max_rank={self.max_rank}; set min_rank to {self.max_rank} or less"
            )
        return self
