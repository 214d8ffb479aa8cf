"""APO-down (https://arxiv.org/abs/2408.06266, equation 8), for chosen answers that are worse than what the model writes.

loss = σ(βr_w) + 1 - σ(βΔ): both answers become less likely, the rejected one more so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..options import BetaOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class ApoDown(PreferenceLoss):
    """Anchored preference optimization, downwards."""

    known_start = 1.0

    def __init__(self, config: BetaOptions) -> None:
        self.beta = config.beta

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        return (self.beta * pairs.chosen_reward).sigmoid() + (-self.beta * pairs.margin).sigmoid()
