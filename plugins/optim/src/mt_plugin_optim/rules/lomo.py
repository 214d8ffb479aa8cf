"""LOMO (https://arxiv.org/abs/2306.09782) and AdaLomo (https://arxiv.org/abs/2310.10195): updates that need no other gradient."""

from __future__ import annotations

from torch import Tensor

from .factored import divide_by_squares, excess, root_mean_square, start_squares
from .rule import Group, RuleOptimizer, State, decay_weight


class Lomo(RuleOptimizer):
    """Plain descent: no state at all."""

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        decay_weight(weight, group)
        weight.sub_(gradient, alpha=group["lr"])


class AdaLomo(RuleOptimizer):
    """Adafactor's second moment, an update of bounded length, and steps in proportion to the weights (algorithm 1).

    As in the authors' code: the moment's decay is ``1 - t ** beta2_decay``.
    """

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        start_squares(state, weight, factored=weight.dim() > 1)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        update = divide_by_squares(gradient, state, group)
        rate = group["lr"] * root_mean_square(weight).clamp_(min=group["least"])
        if group["weight_decay"]:
            weight.mul_(1 - rate * group["weight_decay"])
        weight.addcmul_(update, rate / excess(update, group), value=-1)
