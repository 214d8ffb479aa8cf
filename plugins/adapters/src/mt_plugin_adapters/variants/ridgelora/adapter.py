"""RidgeLoRA, and what it adds to the gradients."""

from __future__ import annotations

from torch import nn

from mt_core import AdapterContext
from mt_core.adapters import LinearAdapter, Place

from .config import RidgeLoraConfig
from .layer import PARTS, RidgeLinear, squashing_gradients


class RidgeLora(LinearAdapter[RidgeLoraConfig]):
    """Trains ridge, intensity, A and B."""

    base_is_reference = False

    def layer(self, base: nn.Module, place: Place) -> RidgeLinear:
        """See ``LinearAdapter``."""
        return RidgeLinear(base, place, self.config)

    @property
    def steps(self) -> bool:
        """Tell whether the loss has its second term, which alone needs steps."""
        return self.config.squash != 0

    def after_backward(self, context: AdapterContext) -> None:
        """Add the gradient of that term: a mean over all layers of the model, wherever these are."""
        for name, layer in context.modules():
            if isinstance(layer, RidgeLinear):
                parts = {part: context.read(f"{name}.{part}") for part in PARTS}
                for part, added in squashing_gradients(parts, layer.scale).items():
                    gradient = context.read(f"{name}.{part}", "gradient")
                    context.write(f"{name}.{part}", gradient + self.config.squash / layer.layers * added, "gradient")
