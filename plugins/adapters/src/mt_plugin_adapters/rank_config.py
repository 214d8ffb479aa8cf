"""Options of variants that have a rank, and no alpha. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from mt_core import TargetConfig
from mt_core.adapters import names

if TYPE_CHECKING:
    from mt_core.nn import TrainModel


class RankConfig(TargetConfig):
    """Rank of what is trained, without a scale beside it."""

    rank: int = Field(8, gt=0, le=65_536, description="inner dimension of the pair")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of the adapter's inputs set to 0 in training")
    fp32: bool = Field(False, description="compute the adapter's part in fp32, whatever the precision of the run")


class RanksConfig(RankConfig):
    """Some projections may have a rank of their own."""

    ranks: dict[str, int] = Field(
        {}, description="pattern → rank of the projections that it names; the first that matches"
    )

    def rank_of(self, name: str) -> int:
        """The rank of the projection of this name."""
        return next((rank for pattern, rank in self.ranks.items() if names(name, pattern)), self.rank)


def rank_pattern(config: RanksConfig, model: TrainModel) -> dict[str, int]:
    """The ranks of layers that have not the config's, as peft says it."""
    from mt_core.adapters import adapted_layers

    ranks = {name: config.rank_of(name) for name, _ in adapted_layers(model)}
    return {name: rank for name, rank in ranks.items() if rank != config.rank}
