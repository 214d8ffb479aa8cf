"""LOMO (https://arxiv.org/abs/2306.09782) and AdaLomo (https://arxiv.org/abs/2310.10195): updates that need no other gradient.

Shapes: M rows, N columns, of each of several matrices where a weight has more dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
        if weight.dim() < 2:
            state["exp_avg_sq"] = torch.zeros_like(weight)
        else:
            state["row_avg_sq"], state["col_avg_sq"] = (
                weight.new_zeros(weight.shape[:-1]),
                weight.new_zeros(weight.shape[:-2] + weight.shape[-1:]),
            )

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        new = int(state["step"]) ** group["beta2_decay"]
        square = gradient.square().add_(group["eps"])
        if weight.dim() < 2:
            update = state["exp_avg_sq"].lerp_(square, new).rsqrt().mul_(gradient)
        else:
            row_M = state["row_avg_sq"].lerp_(square.mean(dim=-1), new)
            col_N = state["col_avg_sq"].lerp_(square.mean(dim=-2), new)
            row_M1 = (row_M / row_M.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
            update = (gradient * row_M1).mul_(col_N.rsqrt().unsqueeze(-2))
        rate = group["lr"] * _rms(weight).clamp_(min=group["least"])
        too_long = (_rms(update) / group["d"]).clamp_(min=1.0)
        if group["weight_decay"]:
            weight.mul_(1 - rate * group["weight_decay"])
        weight.addcmul_(update, rate / too_long, value=-1)


def _rms(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values)
    return norm.div_(values.numel() ** 0.5)
