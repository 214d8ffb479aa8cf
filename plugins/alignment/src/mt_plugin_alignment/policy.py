"""Losses of tokens that a policy drew. Shapes: n trained tokens, D documents."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MOST = 20.0
"""Bound of a log-ratio before its exponential: e^20 is as good as any ratio that is clipped."""
TWICE = 2.0
"""A token whose ratio is above it, or below its inverse, is far from the policy that drew it."""


def ratios(logps_n: Tensor, old_n: Tensor) -> Tensor:
    """Return how much likelier each token is than for the policy that drew it, (n,)."""
    return (logps_n - old_n).clamp(-MOST, MOST).exp()


def are_far(ratios_n: Tensor) -> Tensor:
    """Return which tokens are more than ``TWICE`` as likely as for the policy that drew them, or less than half, (n,)."""
    return (ratios_n > TWICE) | (ratios_n < 1 / TWICE)


def answer_ratios(
    logps_n: Tensor, old_n: Tensor, document_n: Tensor, document_sums: Callable[[Tensor], Tensor], *, whole: bool
) -> Tensor:
    """Return for each token the ratio of its answer, (n,), with gradients of which those of the answer's tokens make up the ratio's.

    The ratio of an answer is the geometric mean of its tokens' (GSPO, https://arxiv.org/abs/2507.18071, equation 7), or with ``whole``
    their product, as in RLOO. A mean of the results over an answer's tokens has the value and the gradient of the answer's ratio:
    only the token's own part has a gradient here (GSPO-token, equation 14), so that ranks that share an answer need no other's.
    """
    apart_n = (logps_n - old_n).detach()
    total_n, length_n = document_sums(torch.stack((apart_n, torch.ones_like(apart_n)), 1))[document_n].unbind(1)
    own_n = logps_n - logps_n.detach()  # 0, with the gradient of the token
    if whole:
        return (total_n.clamp(-MOST, MOST) + length_n * own_n).exp()
    return ((total_n / length_n).clamp(-MOST, MOST) + own_n).exp()


def clipped_loss(
    ratios_n: Tensor, advantages_n: Tensor, *, low: float, high: float, dual: float | None = None
) -> Tensor:
    """Return -min(ρA, clip(ρ, 1 - low, 1 + high)A), (n,): PPO (https://arxiv.org/abs/1707.06347, equation 7); with high > low DAPO's.

    ``dual`` is c of https://arxiv.org/abs/1912.09729: where A < 0 the loss is at most -cA, however much likelier the token became.
    """
    losses_n = -(ratios_n * advantages_n).minimum(ratios_n.clamp(1 - low, 1 + high) * advantages_n)
    if dual is None:
        return losses_n
    return losses_n.minimum(-dual * advantages_n).where(advantages_n < 0, losses_n)


def soft_loss(ratios_n: Tensor, advantages_n: Tensor, *, positive: float, negative: float) -> Tensor:
    """Return -4 σ(τ(ρ - 1)) A / τ, (n,): SAPO (https://arxiv.org/abs/2511.20347, equation 6), with τ by the sign of A.

    At ρ = 1 it has the gradient of ρA; the further a ratio is from 1, the less its token is learned from, without a bound.
    """
    temperature_n = torch.where(advantages_n > 0, positive, negative)
    return -4 * (temperature_n * (ratios_n - 1)).sigmoid() * advantages_n / temperature_n


def cispo_loss(ratios_n: Tensor, logps_n: Tensor, advantages_n: Tensor, *, low: float, high: float) -> Tensor:
    """Return -sg(clip(ρ, 1 - low, 1 + high)) A log π, (n,): CISPO (https://arxiv.org/abs/2506.13585, equations 4 and 5).

    Every token keeps a gradient; what is clipped is only its weight.
    """
    return -(ratios_n.detach().clamp(1 - low, 1 + high) * advantages_n * logps_n)
