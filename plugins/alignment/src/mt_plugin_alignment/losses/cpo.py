"""CPO (https://arxiv.org/abs/2401.08417): DPO with a uniform reference, and likelihood of the chosen answer.

loss = -(1-ε) log σ(β(l_w - l_l)) - ε log σ(-β(l_w - l_l)), l the log-probability of an answer; the objective adds the negative
log-likelihood of chosen answers with weight 1.
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


class CpoConfig(BetaOptions):
    """Options of CPO."""

    beta: float = Field(0.1, gt=0, description="factor of the difference of two log-probabilities")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="ε: probability that a label is wrong")


class Cpo(PreferenceLoss):
    """Contrastive preference optimization."""

    needs_reference = False
    nll = 1.0

    def __init__(self, config: CpoConfig) -> None:
        self.beta, self._label_smoothing = config.beta, config.label_smoothing

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        return log_loss(self.beta * (pairs.chosen - pairs.rejected), self._label_smoothing)
