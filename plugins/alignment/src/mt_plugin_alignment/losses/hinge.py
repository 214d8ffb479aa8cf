"""Hinge loss on the margin, as SLiC has it (https://arxiv.org/abs/2305.10425; on log-ratios: https://arxiv.org/abs/2309.06657).

loss = max(0, 1 - βΔ).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..divergences import margin
from ..options import DivergenceOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class Hinge(PreferenceLoss):
    """Nothing is learned from a pair whose βΔ is over 1."""

    known_start = 1.0

    def __init__(self, config: DivergenceOptions) -> None:
        self.beta, self._config = config.beta, config

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        return (1 - self.beta * margin(pairs, self._config)).relu()
