"""The layer of LoRA-XS. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, LoraLinear, Place

from .config import LoraXsConfig


class SquareLinear(LoraLinear):
    """See ``LoraLinear``; ``lora_R`` is (R, R)."""

    trained = ("lora_R",)

    def __init__(self, base: nn.Module, *, rank: int, deviation: float, **options: Any) -> None:
        super().__init__(base, rank=rank, **options)
        self.deviation = deviation
        self.lora_R = self.new_parameter(rank, rank)

    def initialise(self, generator: Generator) -> None:
        """The frozen two from the weight, the square drawn."""
        rank = len(self.lora_R)
        u_FK, s_K, v_KE = torch.linalg.svd(self.base_weight(), full_matrices=False)
        self.lora_A.data.copy_(v_KE[:rank])
        self.lora_B.data.copy_(u_FK[:, :rank] * s_K[:rank])
        self.lora_R.data.copy_(torch.empty(rank, rank).normal_(std=self.deviation, generator=generator))

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """M Vᵀ, an R x E matrix as Vᵀ is, and U S."""
        a_RE, b_FR = super().pair(dtype)
        return self.lora_R.to(dtype) @ a_RE, b_FR


class LoraXs(LinearAdapter[LoraXsConfig]):
    """Trains the square alone."""

    base_is_reference = False

    def layer(self, base: nn.Module, place: Place) -> SquareLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return SquareLinear(
            base,
            deviation=config.deviation,
            **config.arguments(place.name),
        )
