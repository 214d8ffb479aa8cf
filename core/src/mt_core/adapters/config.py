"""Options that adapters of linear layers share. Imports no torch."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import Field

from mt_core.config.base import MtConfig, Patterns


class TargetConfig(MtConfig):
    """Choice of the linear layers that get an adapter."""

    targets: Literal["all-linear"] | Patterns | None = Field(
        None,
        description="projections: names (q_proj) or patterns (* and ?) of whole names; all-linear is all but the head;"
        " none is the family's own list",
    )
    exclude: Patterns = Field((), description="names or patterns of projections that stay as they are")


class LowRankConfig(TargetConfig):
    """Options of a pair of low-rank matrices beside each projection (https://arxiv.org/abs/2106.09685)."""

    rank: int = Field(8, gt=0, le=65_536, description="inner dimension of the pair")
    alpha: float = Field(16.0, gt=0, description="the update is multiplied by alpha / rank")
    rslora: bool = Field(False, description="multiply by alpha / sqrt(rank) instead (https://arxiv.org/abs/2312.03732)")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of the adapter's inputs set to 0 in training")
    ranks: dict[str, int] = Field(
        {}, description="pattern → rank of the projections that it names; the first that matches"
    )
    alphas: dict[str, float] = Field(
        {}, description="pattern → alpha of the projections that it names; the first that matches"
    )
    fp32: bool = Field(False, description="compute the adapter's part in fp32, whatever the precision of the run")

    def rank_of(self, name: str) -> int:
        """The rank of the projection of this name."""
        return next((rank for pattern, rank in self.ranks.items() if names(name, pattern)), self.rank)

    def scale_of(self, name: str, rank: int | None = None) -> float:
        """Return the factor of a layer's update; ``rank`` where it is another one than ``rank_of``."""
        rank = self.rank_of(name) if rank is None else rank
        return float(self.alpha_of(name) / (rank**0.5 if self.rslora else rank))

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the arguments that the layer of this projection is built with: rank, scale, dropout, fp32."""
        return {"rank": self.rank_of(name), "scale": self.scale_of(name), "dropout": self.dropout, "fp32": self.fp32}

    def plain_alpha_of(self, name: str) -> float:
        """The alpha that gives its scale where that is alpha / rank, with or without ``rslora``."""
        return float(self.alpha_of(name) * (self.rank_of(name) ** 0.5 if self.rslora else 1))

    def alpha_of(self, name: str) -> float:
        """The alpha of the projection of this name."""
        return next((alpha for pattern, alpha in self.alphas.items() if names(name, pattern)), self.alpha)


def names(module: str, pattern: str) -> bool:
    """Return whether a pattern names a module: its whole name, or its last parts (``mlp.up_proj`` names ``model.layers.0.mlp.up_proj``)."""
    return fnmatchcase(module, pattern) or fnmatchcase(module, f"*.{pattern}")
