"""Values from gradients, and the layer. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mt_core import Probe
from mt_core.nn import TrainModel, low_rank

from ...probed import FoundLinear, ProbedAdapter, largest
from .config import LoraSbConfig


class SquareLinear(FoundLinear):
    """See ``FoundLinear``; ``lora_R`` is (R, R)."""

    trained = ("lora_R",)

    def __init__(self, base: nn.Module, *, rank: int, **options: Any) -> None:
        super().__init__(base, rank=rank, **options)
        self.lora_R = self.new_parameter(rank, rank)

    def begin(self, a_RE: Tensor, b_FR: Tensor | None = None, r_RR: Tensor | None = None) -> None:
        """All three as found."""
        super().begin(a_RE, b_FR)
        assert r_RR is not None, "the square is found with the other two"
        self.lora_R.data.copy_(r_RR)

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        inputs = x if self.dropout is None else self.dropout(x)
        out = self.base_output(x)
        dtype = torch.float32 if self.fp32 else out.dtype
        a_RE = self.lora_R.to(dtype) @ self.lora_A.to(dtype)
        if dtype == out.dtype:
            return low_rank(inputs, a_RE, self.lora_B, self.scale, into=out)
        return out + low_rank(inputs.to(dtype), a_RE, self.lora_B.to(dtype), self.scale).to(out.dtype)

    def delta_weight(self) -> Tensor:
        """scale · B R A."""
        return self.scale * (self.lora_B.float() @ self.lora_R.float() @ self.lora_A.float())


class LoraSb(ProbedAdapter[LoraSbConfig]):
    """Trains the square alone."""

    base_is_reference = False

    kind = SquareLinear

    def prepare(self, model: TrainModel, probe: Probe) -> None:
        """All three of every layer, from the sign of its gradient."""
        for name, _, gradient_FE in self.gradients(model, probe):
            u_FR, s_R, v_RE = largest(-self.config.step * gradient_FE.sign(), self.config.rank_of(name))
            self.found[name] = (v_RE.cpu(), u_FR.cpu(), torch.diag(s_R / self.scale_of(name)).cpu())
