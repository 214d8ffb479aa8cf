"""APO-zero (https://arxiv.org/abs/2408.06266, equation 7), for chosen answers that are better than what the model writes.

loss = 1 - σ(βr_w) + σ(βr_l): the chosen answer becomes likelier, the other one less likely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..options import BetaOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class ApoZero(PreferenceLoss):
    """Anchored preference optimization, away from zero."""

    known_start = 1.0

    def __init__(self, config: BetaOptions) -> None:
        self.beta = config.beta

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        return (-self.beta * pairs.chosen_reward).sigmoid() + (self.beta * pairs.rejected_reward).sigmoid()
