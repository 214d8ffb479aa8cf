"""LoRA's layers, and a parameter group for B."""

from __future__ import annotations

from typing import Any

from torch import nn

from mt_core import UsageError
from mt_core.adapters import LinearAdapter, LoraLinear, PeftForm, Place, adapted_layers, lora_form
from mt_core.nn import TrainModel

from .config import LoraPlusConfig


class LoraPlus(LinearAdapter[LoraPlusConfig]):
    """Trains A and B."""

    def layer(self, base: nn.Module, place: Place) -> LoraLinear:
        """See ``LinearAdapter``."""
        return LoraLinear.of(base, place, self.config)

    def parameter_groups(self, model: TrainModel, rate: float) -> list[dict[str, Any]]:
        """The group of B; what else the optimizer does to matrices (weight decay) is its own default.

        Raises ``UsageError`` where the optimizer has no rate to multiply.
        """
        if not rate:
            raise UsageError(
                "--adapter lora-plus multiplies optimizer.lr, and this optimizer has none; use one that has, or --adapter lora"
            )
        layers = (layer for _, layer in adapted_layers(model) if isinstance(layer, LoraLinear))
        params = [layer.lora_B for layer in layers if layer.lora_B.requires_grad]
        return [{"name": "lora_B", "params": params, "lr": self.config.ratio * rate}] if params else []

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA: what rate trained it is not in its files."""
        return lora_form(self.config, model)
