"""The layer of RaSA. Shapes: E inputs, F outputs, R private and pooled ranks, P pooled ones."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, LowRankLinear, Place, uniform
from mt_core.nn import SharedParameters
from mt_plugin_adapters.first_values import spread, zero

from .config import RasaConfig


class RasaLinear(LowRankLinear):
    """``rasa_A_S`` and ``rasa_B_S`` are the pool; ``rasa_d`` has the private ranks first."""

    def __init__(self, base: nn.Module, store: SharedParameters, config: RasaConfig, *, kind: str, layers: int) -> None:
        super().__init__(base, scale=1.0, dropout=config.dropout, fp32=config.fp32)
        self.alpha, self.private, pool = config.alpha, config.rank - config.pooled, config.pooled * layers
        key = f"{kind} {(self.in_features, self.out_features)}"
        self.rasa_A_S = self.shared_parameter(store, f"A {key}", (pool, self.in_features), spread)
        self.rasa_B_S = self.shared_parameter(store, f"B {key}", (self.out_features, pool), zero)
        self.rasa_A = self.new_parameter(self.private, self.in_features)
        self.rasa_B = self.new_parameter(self.out_features, self.private)
        self.rasa_d = self.new_parameter(self.private + pool)

    def initialise(self, generator: Generator) -> None:
        """A uniform, B zero, and half of alpha over each of the two parts."""
        self.rasa_A.data.copy_(uniform(self.rasa_A, generator))
        self.rasa_B.data.zero_()
        self.rasa_d.data[: self.private] = self.alpha / 2 / self.private
        self.rasa_d.data[self.private :] = self.alpha / 2 / len(self.rasa_A_S)

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """diag(d) [A_i ; A_S] and [B_i B_S]."""
        a_RE = torch.cat([self.rasa_A.to(dtype), self.rasa_A_S.to(dtype)])
        b_FR = torch.cat([self.rasa_B.to(dtype), self.rasa_B_S.to(dtype)], 1)
        return self.rasa_d.to(dtype)[:, None] * a_RE, b_FR


class Rasa(LinearAdapter[RasaConfig]):
    """Trains private ranks, the pool and the weights."""

    def layer(self, base: nn.Module, place: Place) -> RasaLinear:
        """See ``LinearAdapter``."""
        alike = [name for name in place.targets if name == place.name or name.endswith(f".{place.kind}")]
        return RasaLinear(base, self.store, self.config, kind=place.kind, layers=len(alike))
