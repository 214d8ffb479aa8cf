"""LoRA's layers, with other gradients. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mt_core import AdapterContext, LowRankConfig
from mt_core.adapters import LinearAdapter, LoraLinear, PeftForm, Place, lora_form
from mt_core.nn import TrainModel

LEAST = 1e-3
"""Singular values of A or B below this share of the largest are none: Adam's first update of B is little more than signs, whose
columns may all be alike, and what then tells them apart is rounding."""


class LoraPro(LinearAdapter[LowRankConfig]):
    """Trains A and B."""

    def layer(self, base: nn.Module, place: Place) -> LoraLinear:
        """See ``LinearAdapter``."""
        return LoraLinear.of(base, place, self.config)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA: how it began and was trained is not in its files."""
        return lora_form(self.config, model)

    def after_backward(self, context: AdapterContext) -> None:
        """Put the changed gradients in the place of the plain ones."""
        for name, layer in context.modules():
            if not isinstance(layer, LoraLinear):
                continue
            names = f"{name}.lora_A", f"{name}.lora_B"
            a, b = (context.read(each) for each in names)
            grad_a, grad_b = (context.read(each, "gradient") for each in names)
            for each, value in zip(names, adjust_gradients(a, b, grad_a, grad_b, layer.scale), strict=True):
                context.write(each, value, "gradient")


def adjust_gradients(
    a_RE: Tensor, b_FR: Tensor, grad_a_RE: Tensor, grad_b_FR: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The gradients of A and B that the theorems give, in fp32, computed in float64: B is tiny at first."""
    a_RE, b_FR, grad_a_RE, grad_b_FR = (each.double() for each in (a_RE, b_FR, grad_a_RE, grad_b_FR))
    aa_RR, bb_RR = a_RE @ a_RE.mT, b_FR.mT @ b_FR
    aa_inverse_RR, bb_inverse_RR = (torch.linalg.pinv(each, rtol=LEAST**2, hermitian=True) for each in (aa_RR, bb_RR))
    along_RE = bb_inverse_RR @ grad_a_RE / scale**2
    x_RR = sylvester(bb_RR, aa_RR, -along_RE @ a_RE.mT)
    across_FR = grad_b_FR - b_FR @ (bb_inverse_RR @ (b_FR.mT @ grad_b_FR))
    return (along_RE + x_RR @ a_RE).float(), (across_FR @ aa_inverse_RR / scale**2 - b_FR @ x_RR).float()


def sylvester(left_RR: Tensor, right_RR: Tensor, wanted_RR: Tensor) -> Tensor:
    """X of ``left X + X right = wanted``, for symmetric matrices without negative eigenvalues; the smallest where there are many."""
    left_R, p_RR = torch.linalg.eigh(left_RR)
    right_R, q_RR = torch.linalg.eigh(right_RR)
    sums_RR = left_R[:, None] + right_R
    turned_RR = p_RR.mT @ wanted_RR @ q_RR
    solvable = sums_RR > sums_RR.max() * len(sums_RR) * torch.finfo(sums_RR.dtype).eps
    x_RR: Tensor = p_RR @ torch.where(solvable, turned_RR / sums_RR, 0.0) @ q_RR.mT
    return x_RR
