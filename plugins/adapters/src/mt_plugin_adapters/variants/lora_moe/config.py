"""Options of the mixture of LoRA experts."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_plugin_adapters.routing_config import MixtureConfig


class LoraMoeConfig(MixtureConfig):
    """See ``MixtureConfig``."""

    experts: int = Field(4, gt=0, le=4096, description="experts of each projection")

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k} is more than the {self.experts} experts; set at most that")
        return self
