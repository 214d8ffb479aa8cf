"""The layer of ShareLoRA. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, LowRankLinear, Place, uniform
from mt_core.nn import SharedParameters
from mt_plugin_adapters.first_values import spread, zero

from .config import ShareLoraConfig


class ShareLoraLinear(LowRankLinear):
    """``lora_A`` and ``lora_B``, of which one or both are those of all blocks."""

    def __init__(self, base: nn.Module, place: Place, store: SharedParameters, config: ShareLoraConfig) -> None:
        super().__init__(base, scale=config.scale_of(place.name), dropout=config.dropout, fp32=config.fp32)
        self.share, rank = config.share, config.rank_of(place.name)
        key = f"{place.kind} {(self.in_features, self.out_features)} rank {rank}"
        a, b = (rank, self.in_features), (self.out_features, rank)
        self.lora_A = (
            self.shared_parameter(store, f"A {key}", a, spread) if "A" in self.share else self.new_parameter(*a)
        )
        self.lora_B = self.shared_parameter(store, f"B {key}", b, zero) if "B" in self.share else self.new_parameter(*b)

    def initialise(self, generator: Generator) -> None:
        """Fill the layer's own: A uniform, B zero."""
        if "A" not in self.share:
            self.lora_A.data.copy_(uniform(self.lora_A, generator))
        if "B" not in self.share:
            self.lora_B.data.zero_()

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A and B."""
        return self.lora_A.to(dtype), self.lora_B.to(dtype)


class ShareLora(LinearAdapter[ShareLoraConfig]):
    """Trains both."""

    def layer(self, base: nn.Module, place: Place) -> ShareLoraLinear:
        """See ``LinearAdapter``."""
        return ShareLoraLinear(base, place, self.store, self.config)
