"""Values from gradients. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from mt_core import Probe
from mt_core.adapters import PeftForm
from mt_core.nn import TrainModel

from ...probed import ProbedAdapter, largest, plain_start
from .config import LoraOneConfig


class LoraOne(ProbedAdapter[LoraOneConfig]):
    """Trains A and B."""

    base_is_reference = False

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA."""
        return self.as_lora(model)

    def prepare(self, model: TrainModel, probe: Probe) -> None:
        """A and B of every layer, from its gradient."""
        for name, _, gradient_FE in self.gradients(model, probe):
            rank = self.config.rank_of(name)
            if not gradient_FE.any():
                self.found[name] = plain_start(name, rank, gradient_FE.shape[1])
                continue
            u_FR, s_R, v_RE = largest(-gradient_FE, rank)
            root_R = (s_R / self.config.gamma).sqrt()
            self.found[name] = ((root_R[:, None] * v_RE).cpu(), (u_FR * root_R).cpu())
