"""Squares of neighbours through an MLP, under Qwen's names.

Shapes: N features of all items, W width of a feature, G neighbours of a square, M squares, E width of a square (G · W), D model width.
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
    """Each feature is normed by itself before neighbours stand side by side.

    With ``levels`` a feature has as many further ones behind it, for each of which there is a merger of its own.
    """

    def __init__(self, config: MergerConfig, *, source: int, target: int) -> None:
        super().__init__()
        self.factor, self.levels = config.factor, config.levels
        source //= 1 + config.levels
        self.ln_q = _norm(config, source)
        self.mlp = _mlp(source * config.factor**2, target)
        self.deepstack = nn.ModuleList(LevelMerger(config, source, target) for _ in range(config.levels))

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        """(N, W) -> (M, D); (N, (1 + levels) W) -> (M, (1 + levels) D)."""
        places_MG = torch.from_numpy(group_places(self.factor, features, grids)).to(features_NW.device)
        first_NW, *others = features_NW.chunk(1 + self.levels, 1)
        merged_MD = self.mlp(self.ln_q(first_NW)[places_MG].flatten(1))
        added = [level(each_NW[places_MG].flatten(1)) for level, each_NW in zip(self.deepstack, others, strict=True)]
        return torch.cat([merged_MD, *added], 1) if added else merged_MD


class LevelMerger(nn.Module):
    """Neighbours stand side by side before they are normed as one."""

    def __init__(self, config: MergerConfig, source: int, target: int) -> None:
        super().__init__()
        self.ln_q = _norm(config, source * config.factor**2)
        self.mlp = _mlp(source * config.factor**2, target)

    def forward(self, squares_ME: Tensor) -> Tensor:
        """(M, E) -> (M, D)."""
        return self.mlp(self.ln_q(squares_ME))  # type: ignore[no-any-return]


def _norm(config: MergerConfig, width: int) -> nn.Module:
    return (RMSNorm if config.norm == "rms" else nn.LayerNorm)(width, eps=config.eps)


def _mlp(width: int, target: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, target))
