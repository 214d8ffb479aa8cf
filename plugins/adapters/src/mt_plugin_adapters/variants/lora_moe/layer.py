"""Experts of one number and rank in every projection."""

from __future__ import annotations

from torch import nn

from mt_core.adapters import LinearAdapter, Place
from mt_plugin_adapters.mixture import Experts, MixtureLinear

from .config import LoraMoeConfig


class LoraMoe(LinearAdapter[LoraMoeConfig]):
    """Trains experts and gates."""

    def layer(self, base: nn.Module, place: Place) -> MixtureLinear:
        """See ``LinearAdapter``."""
        config = self.config
        experts = Experts(
            count=config.experts,
            rank=config.rank_of(place.name),
            scale=config.scale_of(place.name),
            top_k=config.top_k,
            balance=config.balance,
            dropout=config.dropout,
            fp32=config.fp32,
        )
        return MixtureLinear(base, experts, place.loss_factor)
