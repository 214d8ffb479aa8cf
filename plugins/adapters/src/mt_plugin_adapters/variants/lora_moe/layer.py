"""Experts of one number and rank in every projection."""

from __future__ import annotations

from torch import nn

from mt_core.adapters import Place
from mt_plugin_adapters.mixture import Experts, MixtureAdapter, MixtureLinear

from .config import LoraMoeConfig


class LoraMoe(MixtureAdapter[LoraMoeConfig]):
    """Trains experts and gates."""

    def layer(self, base: nn.Module, place: Place) -> MixtureLinear:
        """See ``LinearAdapter``."""
        config = self.config
        experts = Experts(
            count=config.experts,
            top_k=config.top_k,
            balance=config.balance,
            **config.arguments(place.name),
        )
        return MixtureLinear(base, experts, place, self.rows)
