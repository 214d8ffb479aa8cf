"""The layer of DoRA. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core import LowRankConfig
from mt_core.adapters import LinearAdapter, LoraLinear, PeftForm, Place, lora_form
from mt_core.nn import TrainModel


class DoraLinear(LoraLinear):
    """See ``LoraLinear``; ``lora_magnitude_vector`` is (F)."""

    def __init__(self, base: nn.Module, **options: Any) -> None:
        super().__init__(base, **options)
        self.lora_magnitude_vector = self.new_parameter(self.out_features)

    def initialise(self, generator: Generator) -> None:
        """A and B as in LoRA, the lengths those of the weight: the first gain is 1, to the bit."""
        super().initialise(generator)
        self.lora_magnitude_vector.data.copy_(self._norm())

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F). The bias is not scaled."""
        out = super().adapted_output(x)
        gain_F = (self.lora_magnitude_vector / self._norm()).to(out.dtype)
        return out * gain_F if self.bias is None else out * gain_F + self.bias * (1 - gain_F)

    def merged_weight(self) -> Tensor:
        """Every row of W + s·BA with its trained length."""
        gain_F = self.lora_magnitude_vector.float() / self._norm().float()
        return gain_F[:, None] * super().merged_weight()

    @torch.no_grad()
    def _norm(self) -> Tensor:
        """Lengths of the rows of W + s·BA, (F): ‖w‖² + 2s·w·(BA) + s²·‖BA‖², so that no second (F, E) tensor is made.

        Rounded as the trained lengths are, so that both are equal at first; a row of zeros gets the smallest length there is.
        """
        weight_FE = self.weight if self.is_plain else self.base_weight()
        a_RE, b_FR = self.lora_A.to(weight_FE.dtype), self.lora_B.float()
        along_FR = (weight_FE @ a_RE.mT).float()
        a_RR = self.lora_A.float() @ self.lora_A.float().mT
        squares_F = torch.linalg.vector_norm(weight_FE, dim=1, dtype=torch.float32).square()
        squares_F += ((2 * self.scale) * along_FR + self.scale**2 * (b_FR @ a_RR)).mul_(b_FR).sum(1)
        dtype = self.lora_magnitude_vector.dtype
        norm_F: Tensor = squares_F.clamp_min(0).sqrt().to(dtype).clamp_min(torch.finfo(dtype).tiny)
        return norm_F


class Dora(LinearAdapter[LowRankConfig]):
    """Trains A, B and the lengths."""

    def layer(self, base: nn.Module, place: Place) -> DoraLinear:
        """See ``LinearAdapter``."""
        return DoraLinear.of(base, place, self.config)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA, with ``use_dora``."""
        names = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight", "lora_magnitude_vector": "lora_magnitude_vector"}
        return lora_form(self.config, model, names=names, use_dora=True)
