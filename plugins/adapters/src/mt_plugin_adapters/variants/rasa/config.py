"""Options of RaSA."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mt_plugin_adapters.rank_config import RankConfig


class RasaConfig(RankConfig):
    """See ``RankConfig``."""

    alpha: float = Field(16.0, gt=0, description="sum of the first weights of a layer's ranks")
    pooled: int = Field(1, gt=0, le=65_536, description="ranks of each layer that go into the pool (the paper's k)")

    @model_validator(mode="after")
    def _some_stay(self) -> Self:
        if self.pooled >= self.rank:
            raise ValueError(f"pooled={self.pooled} leaves none of the {self.rank} ranks; set at most {self.rank - 1}")
        return self
