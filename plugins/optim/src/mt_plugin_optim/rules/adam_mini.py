"""Adam-mini (https://arxiv.org/abs/2406.16793): one second moment for each row instead of each number.

The paper's partition: output neurons of projections, tokens of embedding and head; its heads of queries and keys are divided
into rows here, which needs no shape of the model. Fused experts have the rows of each. A vector has one second moment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .rule import Group, RuleOptimizer, State, corrections, decay_weight


class AdamMini(RuleOptimizer):
    """AdamW with half of its state."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        state["exp_avg"] = torch.zeros_like(weight)
        state["row_avg_sq"] = _row_means(torch.zeros_like(weight))

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        decay_weight(weight, group)
        mean, square = state["exp_avg"], state["row_avg_sq"]
        mean.lerp_(gradient, 1 - group["beta1"])
        square.lerp_(_row_means(gradient.square()), 1 - group["beta2"])
        first, second = corrections(state, group)
        weight.addcdiv_(mean, (square / second).sqrt_().add_(group["eps"]), value=-group["lr"] / first)


def _row_means(squares: Tensor) -> Tensor:
    """(rows, columns) -> (rows, 1), (experts, rows, columns) -> (experts, rows, 1), (n,) -> (1,); kernels of more dimensions by output."""
    first = 1 if squares.dim() > 3 else squares.dim() - 1
    return squares.mean(dim=tuple(range(first, squares.dim())), keepdim=True)
