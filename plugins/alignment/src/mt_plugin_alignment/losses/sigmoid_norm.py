"""DPO on means over tokens, "length-normalised DPO" of Tülu 3 (https://arxiv.org/abs/2411.15124).

loss = -log σ(β(r̄_w - r̄_l)), r̄ the log-ratio by token; β is larger than DPO's, since r̄ is smaller than r.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from ..divergences import score
from ..functions import log_loss
from ..options import DivergenceOptions
from .base import PreferenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class SigmoidNormConfig(DivergenceOptions):
    """Options of DPO on means."""

    beta: float = Field(
        5.0, gt=0, description="how strongly the model is held to its reference, by token; higher is closer"
    )


class SigmoidNorm(PreferenceLoss):
    """DPO that pays no answer for its length."""

    known_start = math.log(2)

    def __init__(self, config: SigmoidNormConfig) -> None:
        self.beta, self._config = config.beta, config

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``."""
        chosen = score(pairs.chosen_reward, self._config) / pairs.chosen_lengths
        rejected = score(pairs.rejected_reward, self._config) / pairs.rejected_lengths
        return log_loss(self.beta * (chosen - rejected))
