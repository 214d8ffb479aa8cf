"""Experts by depth."""

from __future__ import annotations

from torch import nn

from mt_core import block_number
from mt_core.adapters import Place
from mt_plugin_adapters.mixture import Experts, MixtureAdapter, MixtureLinear

from .config import MolaConfig


class Mola(MixtureAdapter[MolaConfig]):
    """Trains experts and gates."""

    def layer(self, base: nn.Module, place: Place) -> MixtureLinear:
        """See ``LinearAdapter``."""
        config = self.config
        experts = Experts(
            count=config.experts[part_of(place, len(config.experts))],
            top_k=config.top_k,
            balance=config.balance,
            **config.arguments(place.name),
        )
        return MixtureLinear(base, experts, place, self.rows)


def part_of(place: Place, parts: int) -> int:
    """Return which of so many equal parts of the depth a place is in, from 0; what is outside the blocks is in the first."""
    blocks = sorted({number for name in place.targets if (number := block_number(f"{name}.")) is not None})
    return 0 if place.block is None else blocks.index(place.block) * parts // len(blocks)
