"""The layer of MoRA. Shapes: E inputs, F outputs, S side of the square (r̂), N pieces of the inputs."""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core import UsageError
from mt_core.adapters import LinearAdapter, Place
from mt_plugin_adapters.added import AddedLinear

from .config import MoraConfig

BASE = 10000.0
"""Base of the angles, as in RoPE."""


class MoraLinear(AddedLinear):
    """``mora_M`` is (S, S)."""

    def __init__(self, base: nn.Module, *, side: int, rotated: bool, **options: Any) -> None:
        super().__init__(base, scale=1.0, **options)
        self.rotated = rotated
        self.mora_M = self.new_parameter(side, side)

    def initialise(self, generator: Generator) -> None:
        """M zero."""
        self.mora_M.data.zero_()

    def added_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        pieces = self._rotate(x) if self.rotated else self._sum_neighbours(x)
        out = (pieces @ self.mora_M.to(x.dtype).mT).flatten(len(x.shape) - 1)
        times = -(-self.out_features // out.shape[-1])
        return out.repeat(*(1 for _ in x.shape[:-1]), times)[..., : self.out_features]

    def _rotate(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, N, S): the numbers i and i + S/2 of piece j are turned by j · BASE^(-2i / S)."""
        side = len(self.mora_M)
        missing = -x.shape[-1] % side
        pieces_NS = torch.cat([x, x[..., :missing]], -1).unflatten(-1, (-1, side))  # type: ignore[no-untyped-call]
        numbers_N = torch.arange(pieces_NS.shape[-2], device=x.device)
        angles = torch.outer(numbers_N, BASE ** -(torch.arange(0, side, 2, device=x.device) / side))
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = pieces_NS.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _sum_neighbours(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, S): sums of neighbours, of one more each in the first E mod S groups."""
        side = len(self.mora_M)
        few, larger = divmod(x.shape[-1], side)
        cut = larger * (few + 1)
        first = x[..., :cut].reshape(*x.shape[:-1], larger, few + 1).sum(-1)
        return torch.cat([first, x[..., cut:].reshape(*x.shape[:-1], side - larger, few).sum(-1)], -1)


class Mora(LinearAdapter[MoraConfig]):
    """Trains M."""

    def layer(self, base: nn.Module, place: Place) -> MoraLinear:
        """Raises ``UsageError`` where the square would be larger than the inputs."""
        config, inputs, outputs = self.config, int(base.in_features), int(base.out_features)  # type: ignore[arg-type]
        rotated = config.form == "rotation"
        side = isqrt((inputs + outputs) * config.rank)
        side -= side % 2 if rotated else 0
        if side > inputs:
            raise UsageError(
                f"adapter.rank: {config.rank} asks for a square of {side} x {side}, and {place.name} has {inputs} inputs;"
                f" at most {((inputs + 1) ** 2 - 1) // (inputs + outputs)} there (--adapter.rank, or --adapter.exclude)"
            )
        return MoraLinear(base, side=side, rotated=rotated, dropout=config.dropout, fp32=config.fp32)
