"""Projectors: one without a fault, and others that each do one thing wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Generator, Tensor, cat, nn, zeros

from mt_core.nn import Projector


def count_all(config: Any, features: int, grid: Any) -> int:
    return features


def count_one_more(config: Any, features: int, grid: Any) -> int:
    return features + 1


def count_shares(config: Any, features: int, grid: Any) -> int:
    return features + 0 // features


def count_by_torch(config: Any, features: int, grid: Any) -> int:
    import torch

    return int(torch.tensor(features))


class Sober(Projector):
    """A projector without a fault."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.linear = nn.Linear(source, target)

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Any]) -> Tensor:
        return self.linear(features_NW)


class Mixing(Sober):
    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Any]) -> Tensor:
        return self.linear(features_NW + features_NW.mean(0))


class Looping(Sober):
    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Any]) -> Tensor:
        return cat([self.linear(each) for each in features_NW.split(list(features))])


class Unreached(Sober):
    def __init__(self, source: int, target: int) -> None:
        super().__init__(source, target)
        self.many = nn.Linear(target, target)

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Any]) -> Tensor:
        found = self.linear(features_NW)
        return self.many(found) if len(found) > 2 else found


class Undrawn(Sober):
    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        if not name.endswith("bias"):
            super().init_tensor(name, tensor, generator)


class Fixed(Sober):
    def __init__(self, source: int, target: int) -> None:
        super().__init__(source, target)
        self.shift = nn.Parameter(zeros(target, device="cpu"))


class Wide(Sober):
    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Any]) -> Tensor:
        return self.linear(features_NW).float()
