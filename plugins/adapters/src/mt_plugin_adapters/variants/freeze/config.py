"""Options of freeze."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_core import MtConfig, Patterns


class FreezeConfig(MtConfig):
    """Choice of the model's parameters that are trained."""

    blocks: int = Field(2, ge=0, description="how many of the last blocks are trained")
    also: Patterns = Field(
        (), description="patterns (* and ?) of whole names of further parameters, such as *.norm.weight"
    )

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.blocks and not self.also:
            raise ValueError("blocks=0 and no pattern in also leave nothing to train; set one of them")
        return self
