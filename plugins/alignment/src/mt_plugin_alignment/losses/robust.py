"""Robust DPO (https://arxiv.org/abs/2403.00409): labels that are wrong at a known rate, taken out of the loss.

loss = [-(1-ε) log σ(βΔ) + ε log σ(-βΔ)] / (1-2ε). Its mean over flipped labels is DPO's over right ones, so that both end at the same
model; it is below 0 where a pair is far on the right side.
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


class RobustConfig(DivergenceOptions):
    """Options of robust DPO."""

    label_smoothing: float = Field(0.1, ge=0, lt=0.5, description="ε: rate at which labels are wrong")


class Robust(PreferenceLoss):
    """DPO without the bias of wrong labels."""

    known_start = math.log(2)

    def __init__(self, config: RobustConfig) -> None:
        self.beta, self._config = config.beta, config

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        x, rate = self.beta * margin(pairs, self._config), self._config.label_smoothing
        return (rate * log_sigmoid(-x) - (1 - rate) * log_sigmoid(x)) / (1 - 2 * rate)
