"""W x + scale · B (B' A') A x. Shapes: E inputs, F outputs, R outer rank, Q inner rank, K the smaller of E and F."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, LoraLinear, Place, uniform

from .config import NoraConfig


class NestedLinear(LoraLinear):
    """See ``LoraLinear``; ``inner_A`` is (Q, R), ``inner_B`` (R, Q)."""

    trained = ("inner_A", "inner_B")

    def __init__(self, base: nn.Module, *, rank: int, inner_rank: int, **options: Any) -> None:
        super().__init__(base, rank=rank, **options)
        self.inner_A = self.new_parameter(inner_rank, rank)
        self.inner_B = self.new_parameter(rank, inner_rank)

    def initialise(self, generator: Generator) -> None:
        """The outer pair from the weight, the inner one as LoRA's."""
        u_FK, s_K, v_KE = torch.linalg.svd(self.base_weight(), full_matrices=False)
        rank = len(self.lora_A)
        root_R = s_K[:rank].sqrt()
        self.lora_A.data.copy_(root_R[:, None] * v_KE[:rank])
        self.lora_B.data.copy_(u_FK[:, :rank] * root_R)
        self.inner_A.data.copy_(uniform(self.inner_A, generator))
        self.inner_B.data.zero_()

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A' A and B B', of the inner rank."""
        a_RE, b_FR = super().pair(dtype)
        return self.inner_A.to(dtype) @ a_RE, b_FR @ self.inner_B.to(dtype)


class Nora(LinearAdapter[NoraConfig]):
    """Trains the inner pair."""

    def layer(self, base: nn.Module, place: Place) -> NestedLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return NestedLinear(
            base,
            inner_rank=config.inner_rank,
            **config.arguments(place.name),
        )
