"""DoRA's layer, begun as PiSSA's."""

from __future__ import annotations

from torch import nn

from mt_core.adapters import LinearAdapter, Place

from ..dora.layer import DoraLinear
from ..pissa.config import PissaConfig
from ..pissa.layer import PissaLinear


class DudeLinear(DoraLinear, PissaLinear):
    """The lengths are taken once A and B are: those of the whole weight."""


class Dude(LinearAdapter[PissaConfig]):
    """Trains A, B and the lengths."""

    rewrites_base = True

    def layer(self, base: nn.Module, place: Place) -> DudeLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return DudeLinear(
            base,
            iterations=config.iterations,
            **config.arguments(place.name),
        )
