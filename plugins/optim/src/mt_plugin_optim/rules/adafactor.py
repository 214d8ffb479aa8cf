"""Adafactor whose steps have the length of the rate, as the Hugging Face Trainer and fairseq have it with ``relative_step`` and
``scale_parameter`` off (https://arxiv.org/abs/1804.04235, algorithms 4 and 5, with alpha_t as given)."""

from __future__ import annotations

from torch import Tensor

from .factored import divide_by_squares, excess, start_squares
from .rule import Group, RuleOptimizer, State, decay_weight

SQUARE_EPS = 1e-30
"""Added to squared gradients, as in the paper and in the Trainer."""


class Adafactor(RuleOptimizer):
    """A weight moves by the rate, whatever its own size is."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        start_squares(state, weight, factored=weight.dim() > 1)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        update = divide_by_squares(gradient, state, group | {"eps": SQUARE_EPS})
        update.div_(excess(update, group))
        decay_weight(weight, group)
        weight.sub_(update, alpha=group["lr"])
