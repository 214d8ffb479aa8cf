"""Options of NZLoRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class NonZeroConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    scale_a: float = Field(1.0, gt=0, description="deviation of the first A, times the root of the inputs")
    scale_b: float = Field(1.0, gt=0, description="deviation of the first B, times the root of the outputs")
    exact: bool = Field(True, description="take the first BA off the frozen weight, so that the base's output is kept")
