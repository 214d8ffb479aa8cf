"""The base of every optimizer that is our own: one rule for one tensor, and state that a checkpoint can hold.

The libraries keep lists, objects and counters of a whole group, which would need pickle, and which ZeRO 3 counts once for
each piece of the weights. Here all state is tensors, and each tensor counts its own steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]
"""State kept for a tensor: other tensors, by name. ``step`` is the number of its updates, this one included."""

Group = dict[str, Any]
"""The options of a parameter group: the fields of the optimizer's config, and ``lr``."""


class RuleOptimizer(torch.optim.Optimizer):
    """Applies ``update`` to every tensor that has a gradient."""

    def __init__(self, groups: list[Group], defaults: Group) -> None:
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.step_of(parameter, group)
        return loss

    def step_of(self, parameter: Tensor, group: Group) -> None:
        """One update of one parameter, which has a gradient."""
        state = self.state[parameter]
        self.count(parameter, state, group)
        self.update(parameter, parameter.grad, state, group)  # type: ignore[arg-type]

    def count(self, like: Tensor, state: State, group: Group) -> None:
        """One update more of a tensor, which ``like`` has the shape of."""
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float64)
            self.start(like, state, group)
        step = state["step"] = state["step"].double()  # a checkpoint may have it in float32, which counts to 16,777,216
        step += 1

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        """Make the state of a tensor, before its first update."""

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        """Change the weight in place. The gradient may be used up."""
        raise NotImplementedError

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        """Return what ``follow`` takes; for rules that do not look at the weight. The gradient may be used up."""
        raise NotImplementedError

    def follow(self, weight: Tensor, direction: Tensor, state: State, group: Group) -> None:
        """Change a weight in place along its direction, by rate and decay."""
        decay_weight(weight, group)
        weight.sub_(direction, alpha=group["lr"])


def decay_weight(weight: Tensor, group: Group) -> None:
    """Decoupled weight decay (https://arxiv.org/abs/1711.05101): a share ``lr * weight_decay`` is taken away."""
    if group["weight_decay"]:
        weight.mul_(1 - group["lr"] * group["weight_decay"])


def start_moments(state: State, like: Tensor) -> None:
    """Adam's two running means, of the gradient and of its square."""
    state["exp_avg"] = torch.zeros_like(like)
    state["exp_avg_sq"] = torch.zeros_like(like)


def moments(state: State, gradient: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Adam's means with this gradient in them (https://arxiv.org/abs/1412.6980, algorithm 1), not corrected for their start."""
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(gradient, 1 - group["beta1"])
    square.mul_(group["beta2"]).addcmul_(gradient, gradient, value=1 - group["beta2"])
    return mean, square


def corrections(state: State, group: Group) -> tuple[float, float]:
    """Return what the means lack for having started at zero: divide them by these."""
    step = int(state["step"])
    return 1 - group["beta1"] ** step, 1 - group["beta2"] ** step


def adam_direction(state: State, gradient: Tensor, group: Group) -> Tensor:
    """Adam's update for a rate of 1, epsilon beside the corrected root as in torch."""
    mean, square = moments(state, gradient, group)
    first, second = corrections(state, group)
    # mean / first, over the root of square / second plus epsilon, with a single temporary tensor
    root = square.sqrt().mul_(first / math.sqrt(second)).add_(first * group["eps"])
    return torch.div(mean, root, out=root)
