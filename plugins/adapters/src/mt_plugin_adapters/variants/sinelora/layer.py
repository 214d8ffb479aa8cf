"""The layer of SineLoRA. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, Place, uniform
from mt_plugin_adapters.added import DenseLinear

from .config import SineLoraConfig


class SineLinear(DenseLinear):
    """``lora_A`` is (R, E), ``lora_B`` (F, R)."""

    def __init__(self, base: nn.Module, *, rank: int, frequency: float, gain: float | None, **options: Any) -> None:
        super().__init__(base, **options)
        self.frequency, self.gain = frequency, gain or self.in_features**0.5
        self.lora_A = self.new_parameter(rank, self.in_features)
        self.lora_B = self.new_parameter(self.out_features, rank)

    def initialise(self, generator: Generator) -> None:
        """A uniform, B zero."""
        self.lora_A.data.copy_(uniform(self.lora_A, generator))
        self.lora_B.data.zero_()

    def update(self, dtype: torch.dtype) -> Tensor:
        """sin(ω B A) / g; what is under the sine in fp32, as eight bits of it say nothing at a frequency of hundreds."""
        angles_FE = self.frequency * (self.lora_B.float() @ self.lora_A.float())
        return (angles_FE.sin() / self.gain).to(dtype)


class SineLora(LinearAdapter[SineLoraConfig]):
    """Trains A and B."""

    def layer(self, base: nn.Module, place: Place) -> SineLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return SineLinear(
            base,
            frequency=config.frequency,
            gain=config.gain,
            **config.arguments(place.name),
        )
