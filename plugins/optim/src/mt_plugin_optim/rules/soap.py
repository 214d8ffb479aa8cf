"""SOAP (https://arxiv.org/abs/2409.11321, algorithm 3): Adam in the eigenbasis of Shampoo's preconditioner.

As in the authors' code (https://github.com/nikhilvyas/SOAP): the first gradient only starts the preconditioner, and a side that is
longer than ``max_side`` keeps its own basis. Shapes: M rows, N columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .rule import Group, RuleOptimizer, State, decay_weight, start_moments

_SIDES = (("left", 0), ("right", 1))


class Soap(RuleOptimizer):
    """Rotates matrices of blocks; all others are Adam's."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        start_moments(state, weight)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        self.follow(weight, self.direction(gradient, state, group), state, group)

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        step = int(state["step"]) - 1
        if step == 0:
            self._accumulate(gradient, state, group)
            for side, _ in _SIDES:
                if f"{side}_sum" in state:
                    state[f"{side}_basis"] = torch.linalg.eigh(state[f"{side}_sum"])[1].flip(1).contiguous()
            return torch.zeros_like(gradient)
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        rotated = _rotate(gradient, state)
        mean.lerp_(gradient, 1 - group["beta1"])
        square.lerp_(rotated.square(), 1 - group["beta2"])
        direction = _rotate(_rotate(mean, state) / square.sqrt().add_(group["eps"]), state, back=True)
        first, second = 1 - group["beta1"] ** step, 1 - group["beta2"] ** step
        self._accumulate(gradient, state, group)
        if step % group["update_steps"] == 0:
            _refresh(state)
        return direction.mul_(math.sqrt(second) / first)

    def follow(self, weight: Tensor, direction: Tensor, state: State, group: Group) -> None:
        if int(state["step"]) > 1:
            weight.sub_(direction, alpha=group["lr"])
            decay_weight(weight, group)

    def _accumulate(self, gradient: Tensor, state: State, group: Group) -> None:
        """The running means of ``G Gᵀ`` and ``Gᵀ G``."""
        if not group["transformed"]:
            return
        for side, dim in _SIDES:
            if gradient.shape[dim] <= group["max_side"]:
                product = gradient @ gradient.T if dim == 0 else gradient.T @ gradient
                total = state.setdefault(f"{side}_sum", torch.zeros_like(product))
                total.lerp_(product, 1 - group["beta2"])


def _rotate(matrix_MN: Tensor, state: State, *, back: bool = False) -> Tensor:
    if "left_basis" in state:
        matrix_MN = (state["left_basis"] if back else state["left_basis"].T) @ matrix_MN
    if "right_basis" in state:
        matrix_MN = matrix_MN @ (state["right_basis"].T if back else state["right_basis"])
    return matrix_MN


def _refresh(state: State) -> None:
    """One round of power iteration on each basis; the second moment follows the order of its directions."""
    for side, dim in _SIDES:
        if f"{side}_basis" in state:
            basis = state[f"{side}_basis"]
            product = state[f"{side}_sum"] @ basis
            order = (basis * product).sum(dim=0).argsort(descending=True)
            state["exp_avg_sq"] = state["exp_avg_sq"].index_select(dim, order)
            state[f"{side}_basis"] = torch.linalg.qr(product.index_select(1, order))[0].contiguous()
