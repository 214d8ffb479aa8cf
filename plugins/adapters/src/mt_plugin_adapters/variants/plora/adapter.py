"""LoRA's layers, merged and begun anew."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mt_core import AdapterContext
from mt_core.adapters import LinearAdapter, LoraLinear, Place, read_base, uniform, write_base
from mt_core.nn import tensor_generator

from .config import PloraConfig


class Plora(LinearAdapter[PloraConfig]):
    """Trains A and B."""

    rewrites_base = True

    def layer(self, base: nn.Module, place: Place) -> LoraLinear:
        """See ``LinearAdapter``."""
        return LoraLinear.of(base, place, self.config)

    def after_step(self, context: AdapterContext) -> None:
        """Merge and begin anew at the end of a stage. The new A follows from step and name, on any layout."""
        if context.step % self.config.every_steps:
            return
        for name, layer in context.modules():
            if not isinstance(layer, LoraLinear):
                continue
            a, b = (context.read(f"{name}.{each}") for each in ("lora_A", "lora_B"))
            write_base(context, name, layer, read_base(context, name, layer) + layer.scale * (b @ a))
            drawn = uniform(a, tensor_generator(context.step, f"{name}.lora_A")).to(a.device)
            for own, value in ((f"{name}.lora_A", drawn), (f"{name}.lora_B", torch.zeros_like(b))):
                context.write(own, value)
                for part in context.moments(own):
                    context.write(own, self.kept_moment(context, own, part), part)

    def kept_moment(self, context: AdapterContext, name: str, part: str) -> Tensor:
        """Return what is left of an optimizer's moment when a stage ends: nothing."""
        return torch.zeros_like(context.read(name, part))
