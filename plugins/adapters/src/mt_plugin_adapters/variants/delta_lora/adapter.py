"""LoRA's layers, whose weight follows."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from mt_core import AdapterContext
from mt_core.adapters import LinearAdapter, LoraLinear, Place, read_base, write_base

from .config import DeltaLoraConfig


class DeltaLora(LinearAdapter[DeltaLoraConfig]):
    """Trains A and B."""

    rewrites_base = True

    def __init__(self, config: DeltaLoraConfig) -> None:
        super().__init__(config)
        self.before: dict[str, tuple[Tensor, Tensor]] = {}  # of the update that is being made

    def layer(self, base: nn.Module, place: Place) -> LoraLinear:
        """See ``LinearAdapter``."""
        return LoraLinear.of(base, place, self.config)

    def after_backward(self, context: AdapterContext) -> None:
        """Keep what A and B are, in case that the update is made."""
        moves = context.step > self.config.start_steps
        self.before = {name: _pair(context, name) for name, _ in _layers(context)} if moves else {}

    def after_step(self, context: AdapterContext) -> None:
        """Move the weights by what the update has changed."""
        for name, layer in _layers(context):
            if name in self.before:
                a, b = self.before.pop(name)
                new_a, new_b = _pair(context, name)
                change_FE = new_b @ new_a - b @ a
                moved = read_base(context, name, layer) + self.config.ratio * layer.scale * change_FE
                write_base(context, name, layer, moved)


def _layers(context: AdapterContext) -> Iterator[tuple[str, LoraLinear]]:
    return ((name, module) for name, module in context.modules() if isinstance(module, LoraLinear))


def _pair(context: AdapterContext, name: str) -> tuple[Tensor, Tensor]:
    return context.read(f"{name}.lora_A"), context.read(f"{name}.lora_B")
