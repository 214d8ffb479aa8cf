"""Options of OFT."""

from __future__ import annotations

from pydantic import Field

from mt_core import TargetConfig


class OftConfig(TargetConfig):
    """See ``TargetConfig``."""

    block_size: int = Field(32, gt=1, description="inputs that are rotated among each other; divides their number")
    shared_blocks: bool = Field(False, description="one rotation for all blocks of a projection")
    neumann_terms: int | None = Field(
        None,
        ge=4,
        description="powers of Q in place of the exact inverse: less time for large blocks, nearly orthogonal",
    )
    fp32: bool = Field(False, description="rotate the inputs in fp32, whatever the precision of the run")
