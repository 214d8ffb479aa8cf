"""Values from a natural gradient. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

import torch
from torch import Tensor

from mt_core import Probe
from mt_core.adapters import PeftForm, device_of
from mt_core.nn import TrainModel

from ...probed import ProbedAdapter, plain_start, portions, signs
from .config import LoraDaConfig


class LoraDa(ProbedAdapter[LoraDaConfig]):
    """Trains A and B."""

    base_is_reference = False

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA."""
        return self.as_lora(model)

    def prepare(self, model: TrainModel, probe: Probe) -> None:
        """A and B of every layer, from its gradient and its Fisher factors."""
        targets, steps = self.with_gradients(model), self.config.probe_steps
        sizes = {
            name: 8 * base.in_features**2 + 4 * base.in_features * base.out_features for name, base in targets.items()
        }
        for portion in portions(sizes, self.config.probe_gb * 1e9):
            gradients = probe.gradients([f"{name}.weight" for name in portion], steps=steps)
            moments, squares = probe.input_moments(portion, steps=steps), probe.output_squares(portion, steps=steps)
            for name in portion:
                here = device_of(targets[name])
                found = gradients.pop(f"{name}.weight"), moments.pop(name), squares.pop(name)
                rank = self.config.rank_of(name)
                if not found[0].any():
                    self.found[name] = plain_start(name, rank, found[0].shape[1])
                    continue
                pair = self._pair(*(each.to(here).double() for each in found), rank=rank)
                self.found[name] = tuple(each.float().cpu() for each in pair)

    def _pair(self, gradient_FE: Tensor, moment_EE: Tensor, squares_F: Tensor, *, rank: int) -> tuple[Tensor, Tensor]:
        config = self.config
        moment_EE.diagonal().add_(config.damping * moment_EE.diagonal().mean())
        squares_F = squares_F + config.damping * squares_F.mean()
        inverse_EE = torch.linalg.inv(moment_EE)
        step_EF = -(inverse_EE @ gradient_FE.mT) / squares_F
        length = torch.linalg.matrix_norm(step_EF, 2)
        step_EF /= length
        uncertain = config.variance / config.tokens / length**2 * squares_F.reciprocal().sum()
        guide_EE = uncertain * inverse_EE - step_EF @ step_EF.mT
        a_RE = torch.linalg.eigh((guide_EE + guide_EE.mT) / 2).eigenvectors[:, :rank].mT
        a_RE = a_RE * signs(a_RE)[:, None] / config.gamma**0.5
        return a_RE, step_EF.mT @ (a_RE.mT)
