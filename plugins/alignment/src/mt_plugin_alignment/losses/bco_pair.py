"""BCO for pairs (https://arxiv.org/abs/2404.04656): a classifier of single answers, chosen or not, with the reward as its logit.

loss = -log σ(βr_w) - log σ(-βr_l). The paper's shift δ of the reward is 0, as in TRL: it would couple the pairs of a step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..functions import log_sigmoid
from ..options import BetaOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class BcoPair(PreferenceLoss):
    """Binary classifier optimization."""

    known_start = 2 * math.log(2)

    def __init__(self, config: BetaOptions) -> None:
        self.beta = config.beta

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        return -log_sigmoid(self.beta * pairs.chosen_reward) - log_sigmoid(-self.beta * pairs.rejected_reward)
