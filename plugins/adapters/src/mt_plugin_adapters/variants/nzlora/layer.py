"""LoRA's layer, with two random matrices. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, nn

from mt_core.adapters import LinearAdapter, LoraLinear, Place

from .config import NonZeroConfig


class NonZeroLinear(LoraLinear):
    """See ``LoraLinear``."""

    def __init__(self, base: nn.Module, *, scale_a: float, scale_b: float, exact: bool, **options: Any) -> None:
        super().__init__(base, **options)
        self.deviations = (scale_a * self.in_features**-0.5, scale_b * self.out_features**-0.5)
        self.exact = exact

    def initialise(self, generator: Generator) -> None:
        """Both drawn, and taken off the weight where that is wanted."""
        for parameter, deviation in zip((self.lora_A, self.lora_B), self.deviations, strict=True):
            parameter.data.copy_(torch.empty(parameter.shape).normal_(0, deviation, generator=generator))
        if self.exact:
            self.put_base_weight(self.base_weight() - self.delta_weight())


class NonZero(LinearAdapter[NonZeroConfig]):
    """Trains A and B."""

    rewrites_base = True

    def layer(self, base: nn.Module, place: Place) -> NonZeroLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return NonZeroLinear(
            base,
            scale_a=config.scale_a,
            scale_b=config.scale_b,
            exact=config.exact,
            **config.arguments(place.name),
        )
