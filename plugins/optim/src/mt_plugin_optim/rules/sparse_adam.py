"""Adam for rows that are seldom used: what has no gradient in a step is not touched (torch's ``SparseAdam``)."""

from __future__ import annotations

import math

from torch import Tensor

from .rule import Group, RuleOptimizer, State, corrections, start_moments


class SparseAdam(RuleOptimizer):
    """Rows of a matrix, such as an embedding's, whose gradient is all zeros keep weights and moments."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        start_moments(state, weight)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        used = gradient.ne(0)
        rows = (used.any(dim=tuple(range(1, gradient.dim()))) if gradient.dim() > 1 else used).nonzero().squeeze(1)
        own = gradient.index_select(0, rows)
        mean = state["exp_avg"].index_select(0, rows).lerp_(own, 1 - group["beta1"])
        square = state["exp_avg_sq"].index_select(0, rows).lerp_(own.square(), 1 - group["beta2"])
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        first, second = corrections(state, group)
        direction = mean.div_(square.sqrt_().add_(group["eps"]))
        weight.index_add_(0, rows, direction, alpha=-group["lr"] * math.sqrt(second) / first)
