"""Schedule-free AdamW (https://arxiv.org/abs/2405.15682): the average of all weights, without a planned end.

Gradients are taken at y, between the fast weights z and their average x; y is what trains. The authors' package counts for a whole
parameter group, which ZeRO 3 steps once for each piece; here each tensor counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .rule import Group, RuleOptimizer, State


class ScheduleFreeAdamW(RuleOptimizer):
    """``average_of`` gives x, which an engine evaluates and publishes."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        state["z"] = weight.detach().clone()
        state["exp_avg_sq"] = torch.zeros_like(weight)
        state["weight_sum"] = torch.zeros((), dtype=torch.float32)
        state["lr_max"] = torch.zeros((), dtype=torch.float32)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        rate, beta1, step = group["lr"], group["beta1"], int(state["step"])
        state["lr_max"].clamp_(min=rate)
        share = step ** group["power"] * state["lr_max"] ** 2
        state["weight_sum"] += share
        new = float(share / state["weight_sum"]) if state["weight_sum"] > 0 else 0.0
        square = state["exp_avg_sq"]
        square.mul_(group["beta2"]).addcmul_(gradient, gradient, value=1 - group["beta2"])
        direction = gradient / (square / (1 - group["beta2"] ** step)).sqrt_().add_(group["eps"])
        direction.add_(weight, alpha=group["weight_decay"])
        weight.lerp_(state["z"], new)
        weight.add_(direction, alpha=rate * (beta1 * (1 - new) - 1))
        state["z"].sub_(direction, alpha=rate)

    def average_of(self, parameter: Tensor) -> Tensor:
        """x, of which ``parameter`` is y: ``y = (1 - beta1) z + beta1 x``."""
        state: dict[str, Any] = self.state[parameter]
        return parameter.detach().lerp(state["z"], 1 - 1 / self.defaults["beta1"])
