"""ORPO (https://arxiv.org/abs/2403.07691): odds of the chosen answer over those of the other, beside likelihood.

loss = -λ log σ(log odds_w - log odds_l), log odds = l̄ - log(1 - e^l̄), l̄ the mean log-probability of an answer's tokens. The
objective adds the negative log-likelihood of chosen answers with weight 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..functions import log1mexp, log_sigmoid
from ..options import BetaOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class OrpoConfig(BetaOptions):
    """Options of ORPO."""

    beta: float = Field(0.1, gt=0, description="λ: weight of the odds beside the likelihood of the chosen answer")


class Orpo(PreferenceLoss):
    """Odds ratio preference optimization."""

    needs_reference = False
    nll = 1.0

    def __init__(self, config: OrpoConfig) -> None:
        self.beta = config.beta

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        return -self.beta * log_sigmoid(log_odds(pairs.chosen_mean) - log_odds(pairs.rejected_mean))


def log_odds(logp: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of a log-probability; of a certain one that of the largest p below 1."""
    return logp - log1mexp(logp)
