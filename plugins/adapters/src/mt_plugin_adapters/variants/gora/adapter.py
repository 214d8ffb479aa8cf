"""Ranks and values from gradients. Shapes: E inputs, F outputs, R rank, M the most it may be."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mt_core import Probe
from mt_core.adapters import PeftForm, uniform
from mt_core.nn import TrainModel, tensor_generator

from ...probed import ProbedAdapter, smaller
from ...rank_allocation import allocate_ranks, importance_of
from .config import GoraConfig


class Sketch(NamedTuple):
    """Sketch of a gradient: enough for B at every rank, since the A of a smaller rank is the first rows of a larger one's."""

    importance: float
    a_ME: Tensor
    product_FM: Tensor


class Gora(ProbedAdapter[GoraConfig]):
    """Trains A and B."""

    base_is_reference = False

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA."""
        return self.as_lora(model)

    def prepare(self, model: TrainModel, probe: Probe) -> None:
        """Ranks from what all layers' gradients weigh, then values."""
        sketches = {name: self._sketch(name, base, each) for name, base, each in self.gradients(model, probe)}
        importances = {name: each.importance for name, each in sketches.items()}
        bounds = {"least": self.config.min_rank, "most": self.config.max_rank}
        targets = self.probed_layers(model)
        self.plan = {"ranks": allocate_ranks(targets, importances, self.config.rank_of, **bounds)}
        self.found = {name: self._values(name, each) for name, each in sketches.items()}

    def _sketch(self, name: str, base: nn.Module, gradient_FE: Tensor) -> Sketch:
        like = torch.empty(min(self.config.max_rank, smaller(base)), gradient_FE.shape[1])
        a_ME = uniform(like, tensor_generator(self.config.seed, name))
        product_FM = gradient_FE @ a_ME.mT.to(gradient_FE.device)
        return Sketch(importance_of(base, gradient_FE), a_ME, product_FM.cpu())

    def _values(self, name: str, sketch: Sketch) -> tuple[Tensor, Tensor]:
        rank = self.rank_of(name)
        a_RE = sketch.a_ME[:rank].double()
        factor = self.config.gamma * math.sqrt(a_RE.shape[1] / rank) / self.scale_of(name)
        b_FR = torch.linalg.solve(a_RE @ a_RE.mT, sketch.product_FM[:, :rank].double().mT).mT
        return a_RE.float(), (-factor * b_FR).float()
