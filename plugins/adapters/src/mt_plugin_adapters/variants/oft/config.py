"""Options of OFT."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_core import TargetConfig


class OftConfig(TargetConfig):
    """See ``TargetConfig``."""

    block_size: int | None = Field(
        None,
        gt=1,
        le=65_536,
        description="inputs that are rotated among each other; divides their number. None: 32, or the largest number below it that"
        " divides the inputs of all projections",
    )
    blocks: int | None = Field(
        None,
        gt=0,
        le=65_536,
        description="rotations of each projection in place of block_size, which is then inputs / blocks",
    )
    shared_blocks: bool = Field(False, description="one rotation for all blocks of a projection")
    neumann_terms: int | None = Field(
        None,
        ge=4,
        le=1000,
        description="powers of Q in place of the exact inverse: less time for large blocks, nearly orthogonal",
    )
    fp32: bool = Field(False, description="rotate the inputs in fp32, whatever the precision of the run")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.block_size is not None and self.blocks is not None:
            raise ValueError(
                f"block_size={self.block_size} and blocks={self.blocks} both say how large a block is; set one of them"
            )
        return self
