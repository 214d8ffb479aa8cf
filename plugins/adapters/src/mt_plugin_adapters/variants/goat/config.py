"""Options of GOAT."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_plugin_adapters.rank_config import RankConfig
from mt_plugin_adapters.routing_config import RoutingConfig


class GoatConfig(RankConfig, RoutingConfig):
    """See ``RankConfig`` and ``RoutingConfig``; ``rank`` is that of each expert."""

    rank: int = Field(4, gt=0, le=65_536, description="inner dimension of each expert's pair")
    experts: int = Field(
        8, gt=0, le=4096, description="experts of each projection, and segments of its singular values"
    )
    eta: float = Field(1.0, gt=0, description="learning rate of full training over that of the experts (the paper's η)")
    rho: float = Field(10.0, gt=0, description="the first values' product is that of the segment, divided by this (ρ)")

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k} is more than the {self.experts} experts; set at most that")
        return self
