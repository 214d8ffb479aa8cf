"""Adafactor's second moment (https://arxiv.org/abs/1804.04235, section 3): a mean for each row and each column instead of each number.

Shapes: M rows, N columns, of each of several matrices where a weight has more dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .rule import Group, State


def start_squares(state: State, like: Tensor, *, factored: bool) -> None:
    """Make the means of squared gradients: of rows and columns, or of each number."""
    if factored:
        state["row_avg_sq"] = like.new_zeros(like.shape[:-1])
        state["col_avg_sq"] = like.new_zeros(like.shape[:-2] + like.shape[-1:])
    else:
        state["exp_avg_sq"] = torch.zeros_like(like)


def divide_by_squares(gradient: Tensor, state: State, group: Group) -> Tensor:
    """Return the gradient over the root of its squares' mean, in which it is counted first: by ``step ** beta2_decay``."""
    new = int(state["step"]) ** group["beta2_decay"]
    square = gradient.square().add_(group["eps"])
    if "exp_avg_sq" in state:
        whole: Tensor = state["exp_avg_sq"].lerp_(square, new).rsqrt().mul_(gradient)
        return whole
    row_M = state["row_avg_sq"].lerp_(square.mean(dim=-1), new)
    col_N = state["col_avg_sq"].lerp_(square.mean(dim=-2), new)
    row_M1 = (row_M / row_M.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    divided: Tensor = (gradient * row_M1).mul_(col_N.rsqrt().unsqueeze(-2))
    return divided


def excess(update: Tensor, group: Group) -> Tensor:
    """Return how many times too long an update is, for a root mean square of at most ``d``; 1 where it is not."""
    times: Tensor = (root_mean_square(update) / group["d"]).clamp_(min=1.0)
    return times


def root_mean_square(values: Tensor) -> Tensor:
    """Return it as a tensor without dimensions."""
    mean: Tensor = torch.linalg.vector_norm(values).div_(values.numel() ** 0.5)
    return mean
