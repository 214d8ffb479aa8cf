"""Matrices with GELU between, under LLaVA's names: ``linear_1``, ``linear_2``.

Shapes: N features of all items, W width of a feature, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from mt_core.media import Grid
from mt_core.nn import Projector

from . import MlpConfig


class Mlp(Projector):
    """Each feature by itself."""

    def __init__(self, config: MlpConfig, *, source: int, target: int) -> None:
        super().__init__()
        for index in range(config.depth):
            self.add_module(f"linear_{index + 1}", nn.Linear(target if index else source, target, bias=config.bias))

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        """(N, W) -> (N, D)."""
        first, *others = self.children()
        hidden_ND: Tensor = first(features_NW)
        for linear in others:
            hidden_ND = linear(functional.gelu(hidden_ND))
        return hidden_ND
