"""LoRA's layers, merged and begun anew, with moments that are pruned instead of forgotten."""

from __future__ import annotations

import torch
from torch import Tensor

from mt_core import AdapterContext
from mt_core.nn import tensor_generator

from ..plora.adapter import StagedLora
from .config import ReloraConfig


class Relora(StagedLora[ReloraConfig]):
    """Trains A and B."""

    def kept_moment(self, context: AdapterContext, name: str, part: str) -> Tensor:
        """The moment with all but its share set to 0. What is drawn follows from step and name, on any layout, and is the same
        for all moments of a weight: a first one that is left over a second one of 0 would make a leap."""
        value = context.read(name, part)
        rank = value.abs()
        if self.config.pruning == "random":
            drawn = torch.rand(value.shape, generator=tensor_generator(context.step, name))
            rank = drawn.to(value.device)
        left = round((1 - self.config.pruned) * value.numel())
        chosen = rank.flatten().topk(left).indices
        pruned = torch.zeros_like(value)
        pruned.view(-1)[chosen] = value.flatten()[chosen]
        return pruned
