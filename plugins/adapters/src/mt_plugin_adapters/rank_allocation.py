"""Ranks by the importance of weights to the loss, as GoRA (https://arxiv.org/abs/2502.12171) and RaLoRA-Pro allocate them.

With the budget ``Σ r √(inputs + outputs)`` over all layers at the config's ranks r, a layer whose importance is a share ``a`` of the sum
over all layers gets the rank ``budget · a / √(inputs + outputs)``, rounded, within bounds. So the ranks' sum is near to the config's, and
not held to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from .probed import smaller


def importance_of(base: nn.Module, gradient_FE: Tensor) -> float:
    """Return the mean of ``|W ∘ G|``, G the gradient with respect to the weight W."""
    weight_FE = base.weight.detach().float()  # type: ignore[operator]
    return float((weight_FE * gradient_FE).abs().mean())


def allocate_ranks(
    targets: Mapping[str, nn.Module],
    importances: Mapping[str, float],
    rank_of: Callable[[str], int],
    *,
    least: int,
    most: int,
) -> dict[str, int]:
    """Return the rank of each layer, between ``least`` and ``most``, and never more than its weight has."""
    widths = {name: math.sqrt(base.in_features + base.out_features) for name, base in targets.items()}  # type: ignore[operator]
    budget = sum(rank_of(name) * width for name, width in widths.items())
    total = sum(importances.values()) or 1.0
    return {
        name: min(max(round(budget * importances[name] / total / widths[name]), least), most, smaller(base))
        for name, base in targets.items()
    }
