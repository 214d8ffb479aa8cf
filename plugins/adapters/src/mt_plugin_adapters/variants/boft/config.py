"""Options of BOFT."""

from __future__ import annotations

from pydantic import Field

from mt_core import TargetConfig


class BoftConfig(TargetConfig):
    """See ``TargetConfig``."""

    block_size: int = Field(
        4, gt=1, le=65_536, description="inputs that a block rotates among each other; even with several factors"
    )
    factors: int = Field(
        1, gt=0, le=64, description="sparse rotations; block_size · 2^(factors - 1) divides the inputs"
    )
    blocks: int | None = Field(
        None,
        gt=0,
        le=65_536,
        description="blocks of each projection in place of block_size, which is then inputs / blocks",
    )
    fp32: bool = Field(False, description="rotate the inputs in fp32, whatever the precision of the run")
