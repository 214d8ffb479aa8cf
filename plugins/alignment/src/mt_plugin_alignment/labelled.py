"""Losses of single answers, each with a label: desirable or not.

Shapes: A answers of the step. ``rewards`` are r = log π(y) - log π_ref(y), ``desirable`` bool. The sum is divided by the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def kl_baseline(total: Tensor, count: Tensor | float) -> Tensor:
    """Return KTO's z0 = max(0, mean of r over answers to other prompts), without gradient.

    ``total`` is the sum of log π(y'|x) - log π_ref(y'|x) over the prompts x of the whole step, y' the answer of another row, ``count``
    how many there are: a mean over a micro-batch would be another one for each micro-batch.
    """
    return (total / count).clamp(min=0).detach()


def kto(
    rewards_A: Tensor,
    desirable_A: Tensor,
    z0: Tensor | float,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """Return the loss of each answer, (A,); at r = 0 it is half its weight.

    KTO (https://arxiv.org/abs/2402.01306, equation 7): λ_d (1 - σ(β(r - z0))) of a desirable answer, λ_u (1 - σ(β(z0 - r))) of
    another. With z0 = 0 it is APO-zero for labels (https://arxiv.org/abs/2408.06266), which couples no answers.
    """
    distance = beta * (rewards_A - z0)
    wanted, unwanted = desirable_weight * (-distance).sigmoid(), undesirable_weight * distance.sigmoid()
    return wanted.where(desirable_A, unwanted)
