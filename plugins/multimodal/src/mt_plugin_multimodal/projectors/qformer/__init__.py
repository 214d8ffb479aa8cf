"""Q-Former: queries that look at the features of an item through a BERT with cross-attention (https://arxiv.org/abs/2301.12597)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from mt_core import MtConfig
from mt_core.media import Grid, ProjectorComponent

from ..counts import require_features

if TYPE_CHECKING:
    from mt_core.nn import Projector


class QFormerConfig(MtConfig):
    """Sizes of the Q-Former; the defaults are BLIP-2's."""

    queries: int = Field(32, ge=1, le=65_536, description="hidden states of an item")
    dim: int = Field(768, ge=1, le=65_536, description="channels of the Q-Former")
    depth: int = Field(12, ge=1, le=256, description="layers")
    n_heads: int = Field(12, ge=1, le=1024, description="heads")
    ffn_dim: int = Field(3072, ge=1, le=1_000_000, description="channels inside the MLP")
    cross_every: int = Field(
        2, ge=1, le=256, description="layers from one with cross-attention to the next; the first has it"
    )
    norm_eps: float = Field(1e-12, gt=0, le=1, description="added to variances in norms")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.dim % self.n_heads:
            raise ValueError(
                f"dim={self.dim} is not a multiple of n_heads={self.n_heads}; set n_heads to a divisor of dim"
            )
        return self


def count_tokens(config: QFormerConfig, features: int, grid: Grid | None) -> int:
    """Return the hidden states of an item: ``queries``, whatever it is. Raises ``DataError`` for an item without features."""
    return require_features("qformer", features, config.queries)


def build(config: QFormerConfig, source: int, target: int) -> Projector:
    """Return the Q-Former from features of ``source`` to hidden states of ``target`` channels."""
    from .module import QFormerProjector

    return QFormerProjector(config, source=source, target=target)


COMPONENT = ProjectorComponent(
    name="qformer",
    config=QFormerConfig,
    build=build,
    tokens=count_tokens,
    summary="a fixed number of hidden states of an item: queries through a BERT that attends to its features (BLIP-2)",
    source="https://arxiv.org/abs/2301.12597",
)
