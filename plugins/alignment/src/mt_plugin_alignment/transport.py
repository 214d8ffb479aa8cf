"""Alignment by optimal transport (AOT, https://arxiv.org/abs/2406.05882): distributions of log-ratios, not single pairs.

Shapes: (pairs,). Both sort over all pairs that they are given, which are those of a step: a part of it gives another loss. What is
returned belongs to places in the order, not to pairs, and is divided by the pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .functions import log_loss
from .pairs import Pairs, known

if TYPE_CHECKING:
    from torch import Tensor


def aot_paired(pairs: Pairs, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """Return -log σ(β(sorted differences of the model - sorted differences of the reference)).

    A difference is that of chosen and rejected log-probability of a pair. Raises ``UsageError`` where there is no reference.
    """
    reference = known(pairs.reference_chosen, "reference_chosen") - known(
        pairs.reference_rejected, "reference_rejected"
    )
    ahead = (pairs.chosen - pairs.rejected).sort().values - reference.sort().values
    return log_loss(beta * ahead, label_smoothing)


def aot_unpaired(pairs: Pairs, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """Return -log σ(β(sorted log-ratios of chosen answers - sorted ones of rejected answers)).

    There must be as many chosen as rejected answers; they need not answer the same prompts. Raises ``UsageError`` where there is no
    reference.
    """
    ahead = pairs.chosen_reward.sort().values - pairs.rejected_reward.sort().values
    return log_loss(beta * ahead, label_smoothing)
