"""LoRA-Dash, which chooses its directions during training."""

from __future__ import annotations

from torch import nn

from mt_core import AdapterContext
from mt_core.adapters import LinearAdapter, Place, read_base

from .config import DashConfig
from .layer import DashLinear, most_changed_directions


class LoraDash(LinearAdapter[DashConfig]):
    """Trains A, B and d."""

    def __init__(self, config: DashConfig) -> None:
        super().__init__(config)
        self.chosen = False  # as far as this process knows

    def layer(self, base: nn.Module, place: Place) -> DashLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return DashLinear(
            base,
            directions=config.directions,
            **config.arguments(place.name),
        )

    def after_step(self, context: AdapterContext) -> None:
        """Once, after the steps that explore; where the update of the last of them was refused, after the next."""
        late = context.step - self.config.explore_steps
        if self.chosen or late < 0:
            return
        self.chosen = True
        for name, layer in context.modules():
            if not isinstance(layer, DashLinear) or (late and context.read(f"{name}.dash_u").any()):
                continue
            a, b = (context.read(f"{name}.{each}") for each in ("lora_A", "lora_B"))
            u, v = most_changed_directions(read_base(context, name, layer), a, b, layer.directions)
            context.write(f"{name}.dash_u", u)
            context.write(f"{name}.dash_v", v)
