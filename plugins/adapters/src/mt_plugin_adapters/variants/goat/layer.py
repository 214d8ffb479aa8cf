"""The layer of GOAT. Shapes: E inputs, F outputs, X experts, R rank of one."""

from __future__ import annotations

import torch
from torch import Generator, nn

from mt_core import UsageError
from mt_core.adapters import Place, uniform
from mt_plugin_adapters.mixture import Experts, MixtureAdapter, MixtureLinear, PresentRows

from .config import GoatConfig


class GoatLinear(MixtureLinear):
    """See ``MixtureLinear``."""

    def __init__(self, base: nn.Module, experts: Experts, place: Place, rows: PresentRows, *, rho: float) -> None:
        super().__init__(base, experts, place, rows)
        self.rho = rho

    def initialise(self, generator: Generator) -> None:
        """The gate uniform, the experts from the weight, which loses their mean, as rounded."""
        weight_FE, experts = self.base_weight(), self.experts
        u_FK, s_K, v_KE = torch.linalg.svd(weight_FE, full_matrices=False)
        width = len(s_K) // experts.count
        taken = [i * width + j for i in range(experts.count) for j in range(experts.rank)]
        root = (s_K[taken] / (experts.scale * self.rho)).sqrt()
        self.lora_A.data.copy_(root[:, None] * v_KE[taken])
        self.lora_B.data.copy_(u_FK[:, taken] * root)
        self.lora_gate.data.copy_(uniform(self.lora_gate, generator))
        even = experts.scale / experts.count * (self.lora_B.data.float() @ self.lora_A.data.float())
        self.put_base_weight(weight_FE - even)


class Goat(MixtureAdapter[GoatConfig]):
    """Trains experts and gates."""

    rewrites_base = True

    def layer(self, base: nn.Module, place: Place) -> GoatLinear:
        """Raises ``UsageError`` where a segment has fewer directions than an expert's rank."""
        config, inputs, outputs = self.config, int(base.in_features), int(base.out_features)  # type: ignore[arg-type]
        if config.rank > (most := min(inputs, outputs) // config.experts):
            raise UsageError(
                f"adapter.rank: {place.name} is {outputs} x {inputs}, which makes {config.experts} segments of {most}"
                f" directions, and an expert asks for {config.rank}; set a smaller rank, or fewer experts"
            )
        experts = Experts(
            count=config.experts,
            rank=config.rank,
            scale=(3 * config.eta * inputs / config.rank) ** 0.5,
            top_k=config.top_k,
            balance=config.balance,
            dropout=config.dropout,
            fp32=config.fp32,
        )
        return GoatLinear(base, experts, place, self.rows, rho=config.rho)
