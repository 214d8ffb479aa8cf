"""IPO (https://arxiv.org/abs/2310.12036, equation 17): regression of the margin, which ends where DPO's would go on for ever.

loss = (Δ - 1/(2β))², β the τ of the paper. Δ is a difference of means over the tokens of an answer, with which its authors
had their results (as they told TRL), or one of sums as the paper writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ..divergences import score
from ..options import DivergenceOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class IpoConfig(DivergenceOptions):
    """Options of IPO."""

    length: Literal["mean", "sum"] = Field(
        "mean", description="log-ratios of an answer: their mean over its tokens, or their sum"
    )


class Ipo(PreferenceLoss):
    """The margin is to be 1/(2β), no less and no more."""

    def __init__(self, config: IpoConfig) -> None:
        self.beta, self._config = config.beta, config
        self.known_start = 1 / (4 * config.beta**2)

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        chosen, rejected = score(pairs.chosen_reward, self._config), score(pairs.rejected_reward, self._config)
        if self._config.length == "mean":
            chosen, rejected = chosen / pairs.chosen_lengths, rejected / pairs.rejected_lengths
        return (chosen - rejected - 1 / (2 * self.beta)).square()
