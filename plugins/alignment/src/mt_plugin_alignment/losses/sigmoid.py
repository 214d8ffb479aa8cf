"""DPO (https://arxiv.org/abs/2305.18290): logistic regression on the margin.

loss = -(1-ε) log σ(βΔ) - ε log σ(-βΔ). With ε > 0 it is conservative DPO, which ends at σ(βΔ) = 1-ε even for pairs that are never
labelled otherwise (E. Mitchell, "A note on DPO with noisy preferences", https://ericmitchell.ai/cdpo.pdf).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from ..divergences import margin
from ..functions import log_loss
from ..options import DivergenceOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class SigmoidConfig(DivergenceOptions):
    """Options of DPO."""

    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="ε: probability that a label is wrong (cDPO); robust takes it out again"
    )


class Sigmoid(PreferenceLoss):
    """DPO, and with smoothed labels cDPO."""

    known_start = math.log(2)

    def __init__(self, config: SigmoidConfig) -> None:
        self.beta, self._config = config.beta, config

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        return log_loss(self.beta * margin(pairs, self._config), self._config.label_smoothing)
