"""EXO for pairs (https://arxiv.org/abs/2402.00856, equation 16): the reverse KL to the preferences, where DPO has the forward KL.

loss = q (log q - log(1-ε)) + (1-q) (log(1-q) - log ε), q = σ(βΔ).
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


class ExoPairConfig(DivergenceOptions):
    """Options of EXO."""

    label_smoothing: float = Field(
        1e-3, gt=0, lt=0.5, description="ε: probability that a label is wrong; 0 would be an infinite loss"
    )


class ExoPair(PreferenceLoss):
    """KL(q ‖ (1-ε, ε)) for the two answers of a pair."""

    def __init__(self, config: ExoPairConfig) -> None:
        self.beta, self._config = config.beta, config
        self.known_start = -math.log(2) - 0.5 * (math.log1p(-config.label_smoothing) + math.log(config.label_smoothing))

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        x, rate = self.beta * margin(pairs, self._config), self._config.label_smoothing
        right = x.sigmoid() * (log_sigmoid(x) - math.log1p(-rate))
        return right + (-x).sigmoid() * (log_sigmoid(-x) - math.log(rate))
