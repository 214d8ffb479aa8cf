"""The layer of LoRA (https://arxiv.org/abs/2106.09685), which many variants begin from: W x + scale · B A x, W frozen.

A is drawn uniformly from ±1/sqrt(inputs), as the authors' code does (Kaiming with a = sqrt(5)); B begins at 0, so that the
first output is the base's.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters.config import LowRankConfig
from mt_core.adapters.linear import Place
from mt_core.nn import AdaptedLinear, LowRank, linear_with_low_rank, low_rank


class LowRankLinear(AdaptedLinear):
    """W x + scale · (the second of ``pair``) (the first of it) x. E inputs, F outputs, R rank.

    A variant declares its parameters and writes ``initialise`` and ``pair``.
    """

    def __init__(self, base: nn.Module, *, scale: float, dropout: float = 0.0, fp32: bool = False) -> None:
        super().__init__(base)
        self.scale, self.fp32 = scale, fp32
        self.dropout = nn.Dropout(dropout) if dropout else None

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The two matrices whose product is the update, (R, E) and (F, R), computed in this dtype."""
        raise NotImplementedError

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        if self._is_pair(x.dtype):
            return linear_with_low_rank(x, self.weight, self.bias, *self.pair(x.dtype), self.scale)
        inputs = x if self.dropout is None else self.dropout(x)
        out = self.base_output(x)
        if not self.fp32 or x.dtype == torch.float32:
            return low_rank(inputs, *self.pair(out.dtype), self.scale, into=out)
        added = low_rank(inputs.float(), *self.pair(torch.float32), self.scale)
        return out + added.to(out.dtype)

    def low_rank(self, dtype: torch.dtype) -> LowRank | None:
        """See ``AdaptedLinear``; a variant with an output of its own is more than a pair."""
        has_own_output = type(self).adapted_output is not LowRankLinear.adapted_output
        if has_own_output or self.is_merged or self.shows_base or not self._is_pair(dtype):
            return None
        return LowRank(self.weight, self.bias, *self.pair(dtype), self.scale)

    def _is_pair(self, dtype: torch.dtype) -> bool:
        return self.is_plain and self.dropout is None and not (self.fp32 and dtype != torch.float32)

    def delta_weight(self) -> Tensor:
        """scale · the product of the pair."""
        a_RE, b_FR = self.pair(torch.float32)
        return self.scale * (b_FR @ a_RE)


class LoraLinear(LowRankLinear):
    """A and B themselves."""

    def __init__(self, base: nn.Module, *, rank: int, scale: float, dropout: float = 0.0, fp32: bool = False) -> None:
        super().__init__(base, scale=scale, dropout=dropout, fp32=fp32)
        self.lora_A = self.new_parameter(rank, self.in_features)
        self.lora_B = self.new_parameter(self.out_features, rank)

    @classmethod
    def of(cls, base: nn.Module, place: Place, config: LowRankConfig) -> Self:
        """Build the layer with the rank, scale and dropout that the config gives this place."""
        return cls(base, **config.arguments(place.name))

    def initialise(self, generator: Generator) -> None:
        """A uniform, B zero."""
        self.lora_A.data.copy_(uniform(self.lora_A, generator))
        self.lora_B.data.zero_()

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A and B."""
        return self.lora_A.to(dtype), self.lora_B.to(dtype)


def uniform(like: Tensor, generator: Generator) -> Tensor:
    """±1/sqrt(last dimension), drawn on the CPU in fp32, so that every device and precision begins with the same."""
    bound = like.shape[-1] ** -0.5
    return torch.empty(like.shape).uniform_(-bound, bound, generator=generator)
