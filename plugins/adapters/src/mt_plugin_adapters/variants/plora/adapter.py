"""LoRA's layers, merged and begun anew, or merged in part."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from mt_core import AdapterContext
from mt_core.adapters import LinearAdapter, LoraLinear, Place, read_base, uniform, write_base
from mt_core.nn import tensor_generator

from .config import PloraConfig, StagedConfig

StagedT = TypeVar("StagedT", bound=StagedConfig)


class StagedLora(LinearAdapter[StagedT]):
    """Trains A and B in stages: at the end of each BA is merged, A is drawn again and B is zero."""

    rewrites_base = True
    share = 1.0
    """Share of BA that is merged."""

    def layer(self, base: nn.Module, place: Place) -> LoraLinear:
        """See ``LinearAdapter``."""
        return LoraLinear.of(base, place, self.config)

    def after_step(self, context: AdapterContext) -> None:
        """Merge at the end of a stage, and begin the next."""
        if context.step % self.config.every_steps:
            return
        for name, layer in context.modules():
            if not isinstance(layer, LoraLinear):
                continue
            names = f"{name}.lora_A", f"{name}.lora_B"
            a, b = (context.read(each) for each in names)
            merged = self.share * layer.scale * (b @ a)
            write_base(context, name, layer, read_base(context, name, layer) + merged)
            for own, value in zip(names, self.next_pair(context, names[0], a, b), strict=True):
                context.write(own, value)
                for part in context.moments(own):
                    context.write(own, self.kept_moment(context, own, part), part)

    def next_pair(self, context: AdapterContext, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return A and B of the next stage. The new A follows from step and name, on any layout."""
        return uniform(a, tensor_generator(context.step, name)).to(a.device), torch.zeros_like(b)

    def kept_moment(self, context: AdapterContext, name: str, part: str) -> Tensor:
        """Return what is left of an optimizer's moment when a stage ends: nothing."""
        return torch.zeros_like(context.read(name, part))


class Plora(StagedLora[PloraConfig]):
    """Trains A and B; with ``momentum`` a stage is merged in part, and goes on with the rest."""

    def __init__(self, config: PloraConfig) -> None:
        super().__init__(config)
        self.share = 1.0 if config.momentum is None else config.momentum

    def next_pair(self, context: AdapterContext, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """See ``StagedLora``."""
        if self.config.momentum is None:
            return super().next_pair(context, name, a, b)
        return (1 - self.share) * a, (1 - self.share) * b
