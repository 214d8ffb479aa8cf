"""Lion (https://arxiv.org/abs/2302.06675, algorithm 2): the sign of an interpolated momentum."""

from __future__ import annotations

import torch
from torch import Tensor

from .rule import Group, RuleOptimizer, State, decay_weight


class Lion(RuleOptimizer):
    """Every number moves by the rate, up or down."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        state["exp_avg"] = torch.zeros_like(weight)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        decay_weight(weight, group)
        mean = state["exp_avg"]
        weight.add_(mean.lerp(gradient, 1 - group["beta1"]).sign_(), alpha=-group["lr"])
        mean.lerp_(gradient, 1 - group["beta2"])
