"""Pooling of an item's features, on its true length, and a matrix to the model's width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from mt_core import MtConfig
from mt_core.media import Grid, ProjectorComponent

from ..counts import require_features

if TYPE_CHECKING:
    from mt_core.nn import Projector


class PoolingConfig(MtConfig):
    """Which hidden states an item becomes."""

    pool: Literal["last", "first", "mean", "sum", "adaptive", "all"] = Field(
        "mean",
        description="one feature, the mean or the sum of all, means of `tokens` pieces (adaptive), or all features",
    )
    tokens: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="pieces of an item for pool adaptive, as even as its length allows; else none",
    )

    @model_validator(mode="after")
    def _pieces_are_adaptive(self) -> Self:
        if (self.pool == "adaptive") != (self.tokens is not None):
            raise ValueError(
                f"pool={self.pool!r} and tokens={self.tokens} do not fit: `tokens` is the number of pieces of pool adaptive, which needs"
                " it, and of no other; set both or neither"
            )
        return self


def count_tokens(config: PoolingConfig, features: int, grid: Grid | None) -> int:
    """Return the hidden states of an item of so many features. Raises ``DataError`` for an item without features."""
    return require_features("pooling", features, len(pieces(config, features)))


def pieces(config: PoolingConfig, features: int) -> list[range]:
    """Return the features that each hidden state of an item is made of.

    Pieces of ``adaptive`` are those of ``torch.nn.AdaptiveAvgPool1d``: of shorter items than pieces they overlap.
    """
    if config.pool == "all":
        return [range(place, place + 1) for place in range(features)]
    if config.pool == "first":
        return [range(1)]
    if config.pool == "last":
        return [range(features - 1, features)]
    count = config.tokens or 1
    return [range(index * features // count, -(-(index + 1) * features // count)) for index in range(count)]


def build(config: PoolingConfig, source: int, target: int) -> Projector:
    """Return the projector from features of ``source`` to hidden states of ``target`` channels."""
    from .module import Pooling

    return Pooling(config, source=source, target=target)


COMPONENT = ProjectorComponent(
    name="pooling",
    config=PoolingConfig,
    build=build,
    tokens=count_tokens,
    summary="the first, last, mean or sum of an item's features, or means of pieces, through one matrix",
)
