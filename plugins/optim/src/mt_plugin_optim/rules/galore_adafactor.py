"""GaLore with Adafactor inside, as in its paper's experiments (https://arxiv.org/abs/2403.03507, section 5).

Shapes: M rows, N columns. As in the authors' code (galore-torch 1.0, ``GaLoreAdafactor`` with ``relative_step`` and
``scale_parameter`` off): epsilon beside the squares, an update of bounded length before it is projected back, decay before the
update. Two things differ. Theirs rotates a matrix whose shorter side is no longer than the rank, which saves nothing, and here it
stays as it is. Theirs has the rate in the mean of updates, here the rate multiplies the mean: the same for a constant rate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..policy import is_hidden, is_vector
from .factored import divide_by_squares, excess, start_squares
from .low_rank import GaLore, is_projected
from .rule import Group, RuleOptimizer, State


class GaLoreAdafactor(GaLore):
    """Adafactor on the projected gradients of matrices in blocks, and on the whole gradients of all others."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        """Nothing yet: the state has the shape of what is projected."""

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        name, shape = group["name"], tuple(gradient.shape)
        projected = is_hidden(name, shape) and is_projected(gradient, group)
        small = self.project(gradient, state, group) if projected else gradient
        if int(state["step"]) == 1:
            start_squares(state, small, factored=not is_vector(name, shape))
        update = divide_by_squares(small, state, group)
        update.div_(excess(update, group))
        if group["beta1"]:
            mean = state.setdefault("exp_avg", torch.zeros_like(update)).lerp_(update, 1 - group["beta1"])
            update.copy_(mean)
        if not projected:
            return update
        return self.expand(update, small, gradient, state, group).mul_(self.factor(group))

    def follow(self, weight: Tensor, direction: Tensor, state: State, group: Group) -> None:
        RuleOptimizer.follow(self, weight, direction, state, group)
