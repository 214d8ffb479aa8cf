"""Losses of tokens that a policy drew. Shapes: n trained tokens. torch is imported by nobody here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MOST = 20.0
"""Bound of a log-ratio before its exponential: e^20 is as good as any ratio that is clipped."""


def ratios(logps_n: Tensor, old_n: Tensor) -> Tensor:
    """Return how much likelier each token is than for the policy that drew it, (n,)."""
    return (logps_n - old_n).clamp(-MOST, MOST).exp()


def clipped_loss(ratios_n: Tensor, advantages_n: Tensor, *, low: float, high: float) -> Tensor:
    """Return -min(ρA, clip(ρ, 1 - low, 1 + high)A), (n,): PPO (https://arxiv.org/abs/1707.06347, equation 7); with high > low DAPO's."""
    return -(ratios_n * advantages_n).minimum(ratios_n.clamp(1 - low, 1 + high) * advantages_n)
