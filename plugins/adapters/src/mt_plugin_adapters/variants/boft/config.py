"""Options of BOFT."""

from __future__ import annotations

from pydantic import Field

from mt_core import TargetConfig


class BoftConfig(TargetConfig):
    """See ``TargetConfig``."""

    block_size: int = Field(
        4, gt=1, description="inputs that a block rotates among each other; even with several factors"
    )
    factors: int = Field(1, gt=0, description="sparse rotations; block_size · 2^(factors - 1) divides the inputs")
    fp32: bool = Field(False, description="rotate the inputs in fp32, whatever the precision of the run")
