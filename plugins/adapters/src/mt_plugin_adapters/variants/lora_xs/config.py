"""Options of LoRA-XS."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class LoraXsConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    deviation: float = Field(1e-5, gt=0, description="standard deviation of the square matrix's first values")
