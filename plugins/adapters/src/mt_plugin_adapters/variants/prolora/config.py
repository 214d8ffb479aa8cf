"""Options of PRoLoRA."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_core import LowRankConfig


class ProLoraConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    pieces_in: int = Field(
        2, gt=0, le=65_536, description="how often A's piece repeats over the inputs (the paper's m)"
    )
    pieces_out: int = Field(
        2, gt=0, le=65_536, description="how often B's piece repeats over the outputs (the paper's n)"
    )
    unshared: int = Field(1, ge=0, le=65_536, description="ranks that do not repeat (the paper's u)")

    @model_validator(mode="after")
    def _some_repeat(self) -> Self:
        least = min([self.rank, *self.ranks.values()])
        if self.unshared >= least:
            raise ValueError(
                f"unshared={self.unshared} leaves none of {least} ranks to repeat; set at most {least - 1}, or use lora"
            )
        return self
