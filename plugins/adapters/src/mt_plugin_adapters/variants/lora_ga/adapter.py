"""Values from gradients. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from torch import Tensor

from mt_core import Probe
from mt_core.nn import TrainModel

from ...probed import FoundLinear, ProbedAdapter, largest
from .config import LoraGaConfig


class GradientLinear(FoundLinear):
    """See ``FoundLinear``."""

    def begin(self, a_RE: Tensor, b_FR: Tensor | None = None) -> None:
        """Begin: what is frozen makes up for the rounding of A and B: only its own is left."""
        weight_FE = self.base_weight()
        super().begin(a_RE, b_FR)
        self.put_base_weight(weight_FE - self.delta_weight())


class LoraGa(ProbedAdapter[LoraGaConfig]):
    """Trains A and B."""

    rewrites_base = True
    kind = GradientLinear
    takes = 2

    def prepare(self, model: TrainModel, probe: Probe) -> None:
        """A and B of every layer, from its gradient."""
        for name, _, gradient_FE in self.gradients(model, probe):
            self.found[name] = tuple(each.cpu() for each in self._pair(gradient_FE, self.config.rank_of(name)))

    def _pair(self, gradient_FE: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        u_FC, s_C, v_CE = largest(gradient_FE, 2 * rank)
        length = len(gradient_FE) ** 0.25 / self.config.gamma**0.5
        if self.config.form == "peft":
            return v_CE[:rank], u_FC[:, rank:] * s_C[rank:] * length
        return v_CE[:rank] * length, u_FC[:, rank:] * length
