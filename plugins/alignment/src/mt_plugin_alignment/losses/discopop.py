"""DiscoPOP (https://arxiv.org/abs/2406.08414, equation 5), a loss that a language model found: logistic here, exponential there.

loss = -log σ(x) (1 - m) + e^(-x) m, x = βΔ, m = σ(x/τ). Where x is far below 0, e^(-x) overflows while m is 0; their product is written
as e^(-x + log m), which is 0 there for any τ below 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from ..divergences import margin
from ..functions import log_sigmoid
from ..options import DivergenceOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class DiscoPopConfig(DivergenceOptions):
    """Options of DiscoPOP."""

    tau: float = Field(0.05, gt=0, lt=1, description="τ: width of the passage from one loss to the other, in βΔ")


class DiscoPop(PreferenceLoss):
    """The log-ratio modulated loss."""

    known_start = 0.5 * math.log(2) + 0.5

    def __init__(self, config: DiscoPopConfig) -> None:
        self.beta, self._config = config.beta, config

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        x = self.beta * margin(pairs, self._config)
        share = x / self._config.tau
        return (-share).sigmoid() * -log_sigmoid(x) + (log_sigmoid(share) - x).exp()
