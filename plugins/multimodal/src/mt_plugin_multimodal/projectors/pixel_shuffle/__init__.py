"""Neighbours side by side in the channels, and one matrix (https://arxiv.org/abs/1609.05158, backwards). Torch is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from mt_core import MtConfig
from mt_core.media import Grid, ProjectorComponent

from ..groups import count_groups

if TYPE_CHECKING:
    from mt_core.nn import Projector


class PixelShuffleConfig(MtConfig):
    """How many features become one hidden state."""

    factor: int = Field(2, ge=1, le=64, description="neighbours in a row and in a column that become one hidden state")


def count_tokens(config: PixelShuffleConfig, features: int, grid: Grid | None) -> int:
    """Return the hidden states of an item. Raises ``DataError`` for a grid that the factor does not divide."""
    return count_groups("pixel-shuffle", config.factor, grid)


def build(config: PixelShuffleConfig, source: int, target: int) -> Projector:
    """Return the projector from features of ``source`` to hidden states of ``target`` channels."""
    from .module import PixelShuffle

    return PixelShuffle(config, source=source, target=target)


COMPONENT = ProjectorComponent(
    name="pixel-shuffle",
    config=PixelShuffleConfig,
    build=build,
    tokens=count_tokens,
    summary="squares of neighbours side by side, through one matrix",
    source="https://arxiv.org/abs/2408.12637",
)
