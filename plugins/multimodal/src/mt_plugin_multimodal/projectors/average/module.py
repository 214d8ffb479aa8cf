"""Means of neighbours, RMSNorm and a matrix, under Gemma 3's names.

Shapes: N features of all items, W width of a feature, G neighbours of a square, M squares, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from mt_core.media import Grid
from mt_core.nn import Projector, RMSNorm

from ..groups import group_places
from . import AverageConfig


class Average(Projector):
    """The mean of each square."""

    def __init__(self, config: AverageConfig, *, source: int, target: int) -> None:
        super().__init__()
        self.factor = config.factor
        self.mm_soft_emb_norm = RMSNorm(source, eps=config.eps, centred=True)
        self.mm_input_projection_weight = nn.Parameter(torch.zeros(source, target))

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        """(N, W) -> (M, D)."""
        places_MG = torch.from_numpy(group_places(self.factor, features, grids)).to(features_NW.device)
        means_MW = features_NW[places_MG].mean(1)
        projected_MD: Tensor = self.mm_soft_emb_norm(means_MW) @ self.mm_input_projection_weight
        return projected_MD

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """The norm's weight is what its scale has beyond 1."""
        if name == "mm_soft_emb_norm.weight":
            tensor.zero_()
        else:
            super().init_tensor(name, tensor, generator)
