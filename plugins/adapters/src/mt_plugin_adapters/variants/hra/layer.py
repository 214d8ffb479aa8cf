"""The layer of HRA. Shapes: E inputs, R reflections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from mt_core.adapters import LinearAdapter, PeftForm, Place, form_of_type
from mt_core.nn import TrainModel, low_rank
from mt_plugin_adapters.added import SeriesLinear

from .config import HraConfig


class ReflectedLinear(SeriesLinear):
    """``hra_u`` is (E, R)."""

    def __init__(self, base: nn.Module, *, rank: int, **options: Any) -> None:
        super().__init__(base, **options)
        self.hra_u = self.new_parameter(self.in_features, rank)

    def initialise(self, generator: Generator) -> None:
        """Equal pairs; the bound counts pairs, as in peft."""
        inputs, rank = self.hra_u.shape
        bound = (rank // 2) ** -0.5
        drawn = torch.empty(inputs, rank // 2).uniform_(-bound, bound, generator=generator)
        self.hra_u.data.copy_(drawn.repeat_interleave(2, 1))

    def transformed_input(self, x: Tensor) -> Tensor:
        """x H_R … H_1 as one product of rank R, ``x - x U Tᵀ Uᵀ`` with ``T⁻¹ = I/2 + the part of UᵀU above its diagonal`` (compact WY,
        Schreiber and Van Loan 1989): R vectors one by one would keep R tensors of the inputs' size."""
        unit_ER = functional.normalize(self.hra_u.float(), dim=0, eps=0)
        inverse_RR = (unit_ER.mT @ unit_ER).triu(1) + 0.5 * torch.eye(unit_ER.shape[1], device=unit_ER.device)
        a_RE = torch.linalg.solve_triangular(inverse_RR, unit_ER.mT, upper=True)
        return low_rank(
            x, a_RE.to(x.dtype), unit_ER.to(x.dtype), -1.0, into=x.clone(memory_format=torch.contiguous_format)
        )


class Hra(LinearAdapter[HraConfig]):
    """Trains the vectors."""

    def layer(self, base: nn.Module, place: Place) -> ReflectedLinear:
        """See ``LinearAdapter``."""
        return ReflectedLinear(base, rank=self.config.rank, fp32=self.config.fp32)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """HRA."""
        return form_of_type("HRA", model, {"hra_u": "hra_u"}, r=self.config.rank)
