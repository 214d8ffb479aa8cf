"""The layer of Tied-LoRA. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from mt_core import LowRankConfig
from mt_core.adapters import LinearAdapter, LowRankLinear, Place
from mt_core.nn import SharedParameters
from mt_plugin_adapters.first_values import spread, zero


class TiedLinear(LowRankLinear):
    """``tied_lora_A`` and ``tied_lora_B`` are those of all blocks."""

    def __init__(self, base: nn.Module, place: Place, store: SharedParameters, config: LowRankConfig) -> None:
        super().__init__(base, scale=config.scale_of(place.name), dropout=config.dropout, fp32=config.fp32)
        rank, sizes = config.rank_of(place.name), (self.in_features, self.out_features)
        key = f"{place.kind} {sizes} rank {rank}"
        self.tied_lora_A = self.shared_parameter(store, f"A {key}", (rank, self.in_features), spread)
        self.tied_lora_B = self.shared_parameter(store, f"B {key}", (self.out_features, rank), zero)
        self.tied_lora_u = self.new_parameter(rank)
        self.tied_lora_v = self.new_parameter(self.out_features)

    def initialise(self, generator: Generator) -> None:
        """Both vectors 1."""
        self.tied_lora_u.data.fill_(1.0)
        self.tied_lora_v.data.fill_(1.0)

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """diag(u) A and diag(v) B."""
        u_R, v_F = self.tied_lora_u.to(dtype), self.tied_lora_v.to(dtype)
        return u_R[:, None] * self.tied_lora_A.to(dtype), v_F[:, None] * self.tied_lora_B.to(dtype)


class TiedLora(LinearAdapter[LowRankConfig]):
    """Trains all four."""

    def layer(self, base: nn.Module, place: Place) -> TiedLinear:
        """See ``LinearAdapter``."""
        return TiedLinear(base, place, self.store, self.config)
