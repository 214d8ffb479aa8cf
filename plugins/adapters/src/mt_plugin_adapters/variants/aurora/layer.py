"""The layer of AuroRA. Shapes: E inputs, F outputs, R rank, S splines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from mt_core import UsageError
from mt_core.adapters import LinearAdapter, Place, uniform
from mt_plugin_adapters.added import AddedLinear

from .config import AuroraConfig

INTERVALS, DEGREE, ENDS = 5, 3, (-1.0, 1.0)
"""Form of the splines, as in the paper's experiments: cubic, on five intervals of 0.4."""
FIRST_SPLINES = 0.1


class AuroraLinear(AddedLinear):
    """``lora_A`` is (R, E), ``lora_B`` (F, R), ``aurora_H`` (R, R), ``aurora_C`` (R, S)."""

    def __init__(self, base: nn.Module, *, rank: int, **options: Any) -> None:
        super().__init__(base, **options)
        self.lora_A, self.lora_B = (
            self.new_parameter(rank, self.in_features),
            self.new_parameter(self.out_features, rank),
        )
        self.aurora_H, self.aurora_C = self.new_parameter(rank, rank), self.new_parameter(rank, INTERVALS + DEGREE)

    def initialise(self, generator: Generator) -> None:
        """All drawn but B, which is zero."""
        for drawn in (self.lora_A, self.aurora_H):
            drawn.data.copy_(uniform(drawn, generator))
        first = torch.empty(self.aurora_C.shape).uniform_(-FIRST_SPLINES, FIRST_SPLINES, generator=generator)
        self.aurora_C.data.copy_(first)
        self.lora_B.data.zero_()

    def added_output(self, x: Tensor) -> Tensor:
        """B σ(A x); what is between the two in fp32, as half precision is coarse beside the splines' intervals."""
        inner_R = functional.linear(x, self.lora_A.to(x.dtype)).float()
        fixed_R = functional.linear(inner_R.tanh(), self.aurora_H.float()).tanh()
        learned_R = functional.linear(splines(inner_R).sum(-2), self.aurora_C.float())
        return functional.linear((fixed_R + learned_R).to(x.dtype), self.lora_B.to(x.dtype))

    def merged_weight(self) -> Tensor:
        """Raises ``UsageError``."""
        raise UsageError(
            "aurora is not linear in its inputs, so that no weight does what it does; generate with the adapter as it is"
        )


def splines(z: Tensor) -> Tensor:
    """Values of all B-splines on evenly spaced knots, (…) -> (…, S), by the recursion of Cox and de Boor; 0 beyond the knots."""
    step = (ENDS[1] - ENDS[0]) / INTERVALS
    knots = ENDS[0] + step * torch.arange(-DEGREE, INTERVALS + DEGREE + 1, device=z.device, dtype=z.dtype)
    z = z[..., None]
    values = ((z >= knots[:-1]) & (z < knots[1:])).to(z.dtype)
    for degree in range(1, DEGREE + 1):
        width = degree * step
        rising, falling = (z - knots[: -degree - 1]) / width, (knots[degree + 1 :] - z) / width
        values = rising * values[..., :-1] + falling * values[..., 1:]
    return values


class Aurora(LinearAdapter[AuroraConfig]):
    """Trains A, B and what is between them."""

    def layer(self, base: nn.Module, place: Place) -> AuroraLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return AuroraLinear(
            base,
            **config.arguments(place.name),
        )
