"""Options of MoLA."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_plugin_adapters.routing_config import MixtureConfig


class MolaConfig(MixtureConfig):
    """See ``MixtureConfig``."""

    experts: tuple[int, ...] = Field(
        (2, 4, 6, 8), min_length=1, description="experts of each projection, from the first blocks to the last"
    )

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if self.top_k > min(self.experts):
            raise ValueError(
                f"top_k={self.top_k} is more than the {min(self.experts)} experts of some blocks; set at most that"
            )
        return self
