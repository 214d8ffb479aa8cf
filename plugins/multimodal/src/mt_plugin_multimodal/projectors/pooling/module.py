"""Pooling on true lengths: no padding is ever added up.

Shapes: I items, N features of all items, W width of a feature, D model width, M hidden states of all items, P features of the largest
piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from mt_core.media import Grid
from mt_core.nn import Projector

from . import PoolingConfig, pieces


class Pooling(Projector):
    """Each piece of an item as one feature, through a matrix."""

    def __init__(self, config: PoolingConfig, *, source: int, target: int) -> None:
        super().__init__()
        self.config = config
        self.linear = nn.Linear(source, target)

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        """(N, W) -> (M, D)."""
        return self.linear(self._pooled(features_NW, features))  # type: ignore[no-any-return]

    def _pooled(self, features_NW: Tensor, features: Sequence[int]) -> Tensor:
        """(N, W) -> (M, W), sums in fp32. The gradient of an index is deterministic, that of a scatter is not."""
        if self.config.pool == "all":
            return features_NW
        starts = accumulate(features[:-1], initial=0)
        found = [
            [start + place for place in piece]
            for start, length in zip(starts, features, strict=True)
            for piece in pieces(self.config, length)
        ]
        largest = max(map(len, found))
        rows_MP = torch.tensor([each + each[:1] * (largest - len(each)) for each in found], device=features_NW.device)
        shares = [1.0 if self.config.pool == "sum" else 1 / len(each) for each in found]
        weights = [
            [share] * len(each) + [0.0] * (largest - len(each)) for share, each in zip(shares, found, strict=True)
        ]
        weights_MP = torch.tensor(weights, dtype=torch.float32, device=features_NW.device)
        return torch.einsum("mp,mpw->mw", weights_MP, features_NW[rows_MP].float()).to(features_NW.dtype)
