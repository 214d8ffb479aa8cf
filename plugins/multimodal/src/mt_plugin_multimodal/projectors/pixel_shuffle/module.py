"""Squares of neighbours through one matrix without a bias.

Shapes: N features of all items, W width of a feature, G neighbours of a square, M squares, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mt_core.media import Grid
from mt_core.nn import Projector

from ..groups import group_places
from . import PixelShuffleConfig


class PixelShuffle(Projector):
    """Neighbours row by row, each with all its channels."""

    def __init__(self, config: PixelShuffleConfig, *, source: int, target: int) -> None:
        super().__init__()
        self.factor = config.factor
        self.proj = nn.Linear(source * config.factor**2, target, bias=False)

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        """(N, W) -> (M, D)."""
        places_MG = torch.from_numpy(group_places(self.factor, features, grids)).to(features_NW.device)
        return self.proj(features_NW[places_MG].flatten(1))  # type: ignore[no-any-return]
