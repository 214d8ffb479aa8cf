"""The options of every optimizer: data, with bounds and units."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_core import GroupOptions


class SgdConfig(GroupOptions):
    """The defaults are those of torch, but for a rate that trains."""

    lr: float = Field(
        0.1, gt=0, le=10, description="base learning rate, multiplied by the schedule's factor (per update)"
    )
    momentum: float = Field(
        0.0, ge=0, lt=1, description="decay of the running sum of gradients (per update); 0 keeps none"
    )
    dampening: float = Field(0.0, ge=0, lt=1, description="share of each gradient that the running sum leaves out")
    nesterov: bool = Field(False, description="look ahead by one update; needs momentum, and no dampening")

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and (self.momentum == 0 or self.dampening):
            raise ValueError(
                f"nesterov needs momentum above 0 and dampening 0, got momentum={self.momentum} and"
                f" dampening={self.dampening}; set momentum to 0.9, or nesterov to false"
            )
        return self


class LionConfig(GroupOptions):
    """The defaults are those of the paper; its rates are a third to a tenth of AdamW's, with as much more decay."""

    lr: float = Field(
        1e-4, gt=0, le=1, description="base learning rate, multiplied by the schedule's factor (per update)"
    )
    weight_decay: float = Field(
        0.3, ge=0, description="share of a matrix taken away per update, times the learning rate; vectors keep all"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="weight of the momentum in the sign (per update)")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the momentum (per update)")
