"""W x + scale · B M A x. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, LoraLinear, Place, uniform

from .config import MosloraConfig


class MixedLinear(LoraLinear):
    """See ``LoraLinear``; ``lora_AB`` is M, (R, R), under the name of the authors' code."""

    def __init__(self, base: nn.Module, *, orthogonal: bool = False, rank: int, **options: Any) -> None:
        super().__init__(base, rank=rank, **options)
        self.orthogonal = orthogonal
        self.lora_AB = self.new_parameter(rank, rank)

    def initialise(self, generator: Generator) -> None:
        """A and M drawn, B zero."""
        super().initialise(generator)
        first = uniform(self.lora_AB, generator)
        if self.orthogonal:
            first = nn.init.orthogonal_(torch.empty(self.lora_AB.shape), generator=generator)
        self.lora_AB.data.copy_(first)

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """M A, an R x E matrix as A is, and B."""
        a_RE, b_FR = super().pair(dtype)
        return self.lora_AB.to(dtype) @ a_RE, b_FR


class Moslora(LinearAdapter[MosloraConfig]):
    """Trains A, M and B."""

    def layer(self, base: nn.Module, place: Place) -> MixedLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return MixedLinear(
            base,
            orthogonal=config.mixer == "orthogonal",
            **config.arguments(place.name),
        )
