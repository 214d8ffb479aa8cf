"""NCA for pairs (https://arxiv.org/abs/2402.05369): each answer against noise, so that the chosen one does not become less likely.

loss = -log σ(βr_w) - ½ log σ(-βr_w) - ½ log σ(-βr_l).
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


class NcaPair(PreferenceLoss):
    """Noise contrastive alignment."""

    known_start = 2 * math.log(2)

    def __init__(self, config: BetaOptions) -> None:
        self.beta = config.beta

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        chosen, rejected = self.beta * pairs.chosen_reward, self.beta * pairs.rejected_reward
        return -log_sigmoid(chosen) - 0.5 * log_sigmoid(-chosen) - 0.5 * log_sigmoid(-rejected)
