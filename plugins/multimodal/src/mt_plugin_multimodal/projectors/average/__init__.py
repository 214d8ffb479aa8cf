"""Means of neighbours, a norm, and one matrix: Gemma 3's (https://arxiv.org/abs/2503.19786). Torch is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from mt_core import MtConfig
from mt_core.media import Grid, ProjectorComponent

from ..groups import count_groups

if TYPE_CHECKING:
    from mt_core.nn import Projector


class AverageConfig(MtConfig):
    """How many features become one hidden state. Gemma 3 makes 16 x 16 of 64 x 64."""

    factor: int = Field(4, ge=1, le=64, description="neighbours in a row and in a column that become one hidden state")
    eps: float = Field(1e-6, gt=0, lt=1, description="added to the mean square in RMSNorm")


def count_tokens(config: AverageConfig, features: int, grid: Grid | None) -> int:
    """Return the hidden states of an item. Raises ``DataError`` for a grid that the factor does not divide."""
    return count_groups("average", config.factor, grid)


def build(config: AverageConfig, source: int, target: int) -> Projector:
    """Return the projector from features of ``source`` to hidden states of ``target`` channels."""
    from .module import Average

    return Average(config, source=source, target=target)


COMPONENT = ProjectorComponent(
    name="average",
    config=AverageConfig,
    build=build,
    tokens=count_tokens,
    summary="means of squares of neighbours, a norm, and one matrix",
    source="https://arxiv.org/abs/2503.19786",
)
