"""Squares of neighbours through an MLP, under Qwen's names.

Shapes: N features of all items, W width of a feature, G neighbours of a square, M squares, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mt_core.media import Grid
from mt_core.nn import Projector, RMSNorm

from ..groups import group_places
from . import MergerConfig


class Merger(Projector):
    """Each feature is normed by itself before neighbours stand side by side."""

    def __init__(self, config: MergerConfig, *, source: int, target: int) -> None:
        super().__init__()
        self.factor = config.factor
        width = source * config.factor**2
        self.ln_q = (RMSNorm if config.norm == "rms" else nn.LayerNorm)(source, eps=config.eps)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, target))

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        """(N, W) -> (M, D)."""
        places_MG = torch.from_numpy(group_places(self.factor, features, grids)).to(features_NW.device)
        return self.mlp(self.ln_q(features_NW)[places_MG].flatten(1))  # type: ignore[no-any-return]
