"""LoRA (https://arxiv.org/abs/2106.09685); its layer is ``mt_core.adapters.LoraLinear``."""

from __future__ import annotations

from torch import nn

from mt_core import LowRankConfig
from mt_core.adapters import LinearAdapter, LoraLinear, PeftForm, Place, lora_form
from mt_core.nn import TrainModel


class Lora(LinearAdapter[LowRankConfig]):
    """A pair of matrices beside each projection."""

    def layer(self, base: nn.Module, place: Place) -> LoraLinear:
        """See ``LinearAdapter``."""
        return LoraLinear.of(base, place, self.config)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA."""
        return lora_form(self.config, model)
