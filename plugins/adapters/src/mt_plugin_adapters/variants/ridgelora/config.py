"""Options of RidgeLoRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class RidgeLoraConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    ridge_mean: float = Field(
        2.0, ge=-10, le=10, description="mean of the numbers whose sigmoids the ridge begins with"
    )
    ridge_deviation: float = Field(
        1.0, ge=0, description="standard deviation of the numbers whose sigmoids the ridge begins with"
    )
    squash: float = Field(
        0.0, le=0, description="weight of the term that rewards updates of high rank; 0 leaves it out"
    )
