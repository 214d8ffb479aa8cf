"""SimPO (https://arxiv.org/abs/2405.14734): means over tokens in the place of a reference, and a margin to reach.

loss = -log σ(β(l̄_w - l̄_l) - γ), l̄ the mean log-probability of an answer's tokens. β of the paper is 2 to 2.5, γ 0.5 to 1.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..functions import log_loss
from ..options import BetaOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class SimpoConfig(BetaOptions):
    """Options of SimPO."""

    beta: float = Field(
        2.0, gt=0, description="factor of the difference of two mean log-probabilities; 2 to 2.5 in the paper"
    )
    gamma: float = Field(
        1.0, ge=0, description="γ: margin that is to be reached, in units of the reward; 0.5 to 1.6 in the paper"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="ε: probability that a label is wrong; 0 in the paper"
    )


class Simpo(PreferenceLoss):
    """Simple preference optimization."""

    needs_reference = False

    def __init__(self, config: SimpoConfig) -> None:
        self.beta, self._config = config.beta, config

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        reached = self.beta * (pairs.chosen_mean - pairs.rejected_mean) - self._config.gamma
        return log_loss(reached, self._config.label_smoothing)
