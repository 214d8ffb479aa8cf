"""SPPO with hard labels (https://arxiv.org/abs/2405.00675, equation 4.7 with P = 1 for the chosen answer and 0 for the other).

loss = (r_w - 1/(2β))² + (r_l + 1/(2β))².
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..options import BetaOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class SppoHard(PreferenceLoss):
    """Each log-ratio has its own target, so that the margin cannot grow by both falling."""

    def __init__(self, config: BetaOptions) -> None:
        self.beta = config.beta
        self.known_start = 1 / (2 * config.beta**2)

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        target = 1 / (2 * self.beta)
        return (pairs.chosen_reward - target).square() + (pairs.rejected_reward + target).square()
