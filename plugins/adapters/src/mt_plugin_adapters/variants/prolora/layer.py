"""The layer of PRoLoRA. Shapes: E inputs, F outputs, R rank, U unshared ranks, S = R - U, C columns or rows of a piece."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from mt_core import UsageError
from mt_core.adapters import LinearAdapter, LowRankLinear, Place

from .config import ProLoraConfig


class ProLoraLinear(LowRankLinear):
    """``prolora_A`` (U, E) and ``prolora_B`` (F, U) are free, ``prolora_A_0`` (S, C) and ``prolora_B_0`` (C, S) repeat."""

    def __init__(self, base: nn.Module, place: Place, config: ProLoraConfig) -> None:
        super().__init__(base, scale=config.scale_of(place.name), dropout=config.dropout, fp32=config.fp32)
        self.pieces = (config.pieces_in, config.pieces_out)
        free, repeated = config.unshared, config.rank_of(place.name) - config.unshared
        if free:
            self.prolora_A = self.new_parameter(free, self.in_features)
            self.prolora_B = self.new_parameter(self.out_features, free)
        self.prolora_A_0 = self.new_parameter(repeated, self.in_features // config.pieces_in)
        self.prolora_B_0 = self.new_parameter(self.out_features // config.pieces_out, repeated)

    def initialise(self, generator: Generator) -> None:
        """The two parts of A uniform within ±1/sqrt(E), B zero."""
        bound = self.in_features**-0.5
        for name, parameter in self.own_parameters():
            if name.startswith("prolora_A"):
                parameter.data.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
            else:
                parameter.data.zero_()

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A and B, written out."""
        a_RE = repeat_rotated(self.prolora_A_0.to(dtype), self.pieces[0])
        b_RF = repeat_rotated(self.prolora_B_0.to(dtype).mT, self.pieces[1])
        if not hasattr(self, "prolora_A"):
            return a_RE, b_RF.mT
        return torch.cat([self.prolora_A.to(dtype), a_RE]), torch.cat([self.prolora_B.to(dtype).mT, b_RF]).mT


def repeat_rotated(piece_SC: Tensor, pieces: int) -> Tensor:
    """(S, C) -> (S, pieces · C): each copy is turned by one stride more."""
    stride = max(len(piece_SC) // pieces, 1)
    return torch.cat([piece_SC.roll(i * stride, 0) for i in range(pieces)], 1)


class ProLora(LinearAdapter[ProLoraConfig]):
    """Trains the free parts and the pieces."""

    def layer(self, base: nn.Module, place: Place) -> ProLoraLinear:
        """Raises ``UsageError`` where the pieces do not divide a projection."""
        sides = {"pieces_in": int(base.in_features), "pieces_out": int(base.out_features)}  # type: ignore[arg-type]
        for option, side in sides.items():
            if side % (pieces := getattr(self.config, option)):
                raise UsageError(
                    f"adapter.{option}: {pieces} does not divide the {side} of {place.name}; set a divisor of it, or"
                    " leave the projection out (--adapter.exclude)"
                )
        return ProLoraLinear(base, place, self.config)
