"""f-divergences: what stands for the log-ratio where another divergence than the reverse KL holds the model to its reference.

f-DPO (https://arxiv.org/abs/2309.16240) has f'(π/π_ref) in the place of log(π/π_ref). A constant of f' cancels between the two
answers. In r = log(π/π_ref):

- reverse KL: r
- forward KL: 1 - e^(-r)
- Jensen-Shannon: log 2 + log σ(r)
- alpha: (e^((α-1)r) - 1) / (α - 1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .functions import log_sigmoid
from .options import Divergence, DivergenceOptions

if TYPE_CHECKING:
    from torch import Tensor

    from .pairs import Pairs

MOST = 40.0
"""Exponent from which e^x stays as it is: squared, as IPO does, it still is a number of fp32 (largest about e^88)."""
NEAR = 1e-6
"""Distance of α from 1 below which the divergence is the reverse KL, its limit."""


def margin(pairs: Pairs, options: DivergenceOptions) -> Tensor:
    """Return f'(chosen) - f'(rejected); Δ itself for the reverse KL."""
    return score(pairs.chosen_reward, options) - score(pairs.rejected_reward, options)


def score(log_ratio: Tensor, options: DivergenceOptions) -> Tensor:
    """Return f' of the ratio whose logarithm is given."""
    return _SCORES[options.divergence](log_ratio, options.divergence_alpha)


def _reverse_kl(log_ratio: Tensor, alpha: float) -> Tensor:
    return log_ratio


def _forward_kl(log_ratio: Tensor, alpha: float) -> Tensor:
    return -(-log_ratio).clamp(max=MOST).expm1()


def _jensen_shannon(log_ratio: Tensor, alpha: float) -> Tensor:
    return math.log(2) + log_sigmoid(log_ratio)


def _alpha(log_ratio: Tensor, alpha: float) -> Tensor:
    if abs(alpha - 1) < NEAR:
        return log_ratio
    return ((alpha - 1) * log_ratio).clamp(max=MOST).expm1() / (alpha - 1)


_SCORES: Mapping[Divergence, Callable[[Tensor, float], Tensor]] = {
    "reverse-kl": _reverse_kl,
    "forward-kl": _forward_kl,
    "js": _jensen_shannon,
    "alpha": _alpha,
}
