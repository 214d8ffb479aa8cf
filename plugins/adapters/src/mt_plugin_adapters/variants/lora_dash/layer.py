"""W x + scale · B A x + U diag(d) V x. Shapes: E inputs, F outputs, R rank, D directions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LoraLinear


class DashLinear(LoraLinear):
    """See ``LoraLinear``; ``dash_index`` is d, ``dash_u`` and ``dash_v`` the directions, (F, D) and (D, E)."""

    trained = ("lora_A", "lora_B", "dash_index")

    def __init__(self, base: nn.Module, *, directions: int, **options: Any) -> None:
        super().__init__(base, **options)
        self.directions = count = min(directions, self.in_features, self.out_features)
        self.dash_index = self.new_parameter(count)
        self.dash_u = self.new_parameter(self.out_features, count)
        self.dash_v = self.new_parameter(count, self.in_features)

    def initialise(self, generator: Generator) -> None:
        """LoRA's, and no direction."""
        super().initialise(generator)
        for parameter in (self.dash_index, self.dash_u, self.dash_v):
            parameter.data.zero_()

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A over V, and B beside U diag(d), which the scale is taken off."""
        a_RE, b_FR = super().pair(dtype)
        directed_FD = self.dash_u.to(dtype) * (self.dash_index.to(dtype) / self.scale)
        return torch.cat([a_RE, self.dash_v.to(dtype)]), torch.cat([b_FR, directed_FD], 1)


def most_changed_directions(weight_FE: Tensor, a_RE: Tensor, b_FR: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Left and right singular vectors of the weight, (F, D) and (D, E), that ``b a`` has changed most for their length."""
    u_FK, s_K, v_KE = torch.linalg.svd(weight_FE, full_matrices=False)
    change_K = ((u_FK.mT @ b_FR) * (v_KE @ a_RE.mT)).sum(1)
    rates_K = change_K.abs() / s_K.clamp_min(torch.finfo(s_K.dtype).tiny)
    chosen = rates_K.topk(count).indices
    return u_FK[:, chosen], v_KE[chosen]
