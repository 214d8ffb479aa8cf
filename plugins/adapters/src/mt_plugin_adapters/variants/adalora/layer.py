"""W x + scale · P Λ Q x, and what is known of the importance of every number. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LoraLinear

PARTS = ("lora_A", "lora_B", "lora_E")


class AdaLoraLinear(LoraLinear):
    """``lora_A`` is Q, ``lora_B`` P, ``lora_E`` the diagonal of Λ, (R).

    The running means are kept as their square roots: products of a weight and its gradient are too small for half precision.
    """

    trained = PARTS

    def __init__(self, base: nn.Module, *, rank: int, **options: Any) -> None:
        super().__init__(base, rank=rank, **options)
        self.lora_E = self.new_parameter(rank)
        for part in PARTS:
            shape = getattr(self, part).shape
            self.register_parameter(f"sensitivity_{part}", self.new_parameter(*shape))
            self.register_parameter(f"uncertainty_{part}", self.new_parameter(*shape))
        self.rank_mask = self.new_parameter(rank)

    def initialise(self, generator: Generator) -> None:
        """P and Q normal with the deviation of the authors' code, Λ zero, nothing known, no rank pruned."""
        for name, parameter in self.own_parameters():
            parameter.data.fill_(1.0 if name == "rank_mask" else 0.0)
        for parameter in (self.lora_A, self.lora_B):
            parameter.data.copy_(torch.empty(parameter.shape).normal_(0, 0.02, generator=generator))

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Λ Q and P."""
        a_RE, b_FR = super().pair(dtype)
        return self.lora_E.to(dtype)[:, None] * a_RE, b_FR


def orthogonal_gradient(a_RE: Tensor) -> Tensor:
    """Return the gradient of ‖A Aᵀ - I‖², (R, E)."""
    excess_RR = a_RE @ a_RE.mT - torch.eye(len(a_RE), device=a_RE.device, dtype=a_RE.dtype)
    return 4 * excess_RR @ a_RE


def rank_scores(scores: dict[str, Tensor]) -> Tensor:
    """Importance of each rank, (R), from that of each number of the three parts."""
    return scores["lora_E"] + scores["lora_A"].mean(1) + scores["lora_B"].mean(0)
