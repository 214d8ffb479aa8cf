"""W x + scale · B A x, with A as it was drawn."""

from __future__ import annotations

from torch import nn

from mt_core import LowRankConfig
from mt_core.adapters import LinearAdapter, LoraLinear, PeftForm, Place, lora_form
from mt_core.nn import TrainModel


class FrozenALinear(LoraLinear):
    """See ``LoraLinear``."""

    trained = ("lora_B",)


class LoraFA(LinearAdapter[LowRankConfig]):
    """Trains B alone."""

    def layer(self, base: nn.Module, place: Place) -> FrozenALinear:
        """See ``LinearAdapter``."""
        return FrozenALinear.of(base, place, self.config)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA: which of the two was trained is not in its files."""
        return lora_form(self.config, model)
