"""LAMB (https://arxiv.org/abs/1904.00962, algorithm 2): AdamW's update, as long as the tensor itself."""

from __future__ import annotations

import torch
from torch import Tensor

from .rule import Group, RuleOptimizer, State, adam_direction, start_moments


class Lamb(RuleOptimizer):
    """The norms of a whole tensor and of its update say how far it moves."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        start_moments(state, weight)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        direction = adam_direction(state, gradient, group).add_(weight, alpha=group["weight_decay"])
        length, own = torch.linalg.vector_norm(direction), torch.linalg.vector_norm(weight)
        # a tensor of zeros, or an update of zeros, has no ratio
        ratio = torch.where((length > 0) & (own > 0), own.clamp(max=group["max_norm"]) / length, 1.0)
        weight.addcmul_(direction, ratio, value=-group["lr"])
