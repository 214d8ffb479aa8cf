"""MoSLoRA's layer, with values from the weight. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from torch import Generator, nn

from mt_core import LowRankConfig
from mt_core.adapters import LinearAdapter, Place

from ..moslora.layer import MixedLinear


class NystromLinear(MixedLinear):
    """See ``MixedLinear``."""

    def initialise(self, generator: Generator) -> None:
        """The weight's first rows, its first columns, and what both have."""
        weight_FE, rank = self.base_weight(), len(self.lora_A)
        self.lora_A.data.copy_(weight_FE[:rank])
        self.lora_B.data.copy_(weight_FE[:, :rank])
        self.lora_AB.data.copy_(weight_FE[:rank, :rank])


class Nlora(LinearAdapter[LowRankConfig]):
    """Trains A, N and B."""

    base_is_reference = False

    def layer(self, base: nn.Module, place: Place) -> NystromLinear:
        """See ``LinearAdapter``."""
        return NystromLinear.of(base, place, self.config)
