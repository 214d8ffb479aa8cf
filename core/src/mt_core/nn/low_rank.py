"""Products with a pair of small matrices, which keep little for the backward and make no tensor of the weight's size.

Shapes: E inputs, F outputs, R rank, N rows, with any dimensions before them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def low_rank(x: Tensor, a_RE: Tensor, b_FR: Tensor, scale: float, *, into: Tensor | None = None) -> Tensor:
    """``scale * (x a^T) b^T``, (…, E) -> (…, F), added to ``into`` where that is given (which is then changed in place).

    It keeps ``x`` for the backward and nothing else but its weights; ``x a^T`` is computed again. No (F, E) tensor is made.
    """
    if into is None:
        into = x.new_zeros(*x.shape[:-1], b_FR.shape[0])
    return _LowRank.apply(into, x, a_RE, b_FR, scale)  # type: ignore[no-untyped-call, no-any-return]


def linear_with_low_rank(
    x: Tensor, weight_FE: Tensor, bias_F: Tensor | None, a_RE: Tensor, b_FR: Tensor, scale: float
) -> Tensor:
    """``x W^T + bias + scale * (x a^T) b^T``, (…, E) -> (…, F), in one piece: the products are added up where they are made.

    It keeps ``x`` and the R numbers of ``x a^T`` a token.
    """
    return _LinearWithLowRank.apply(x, weight_FE, bias_F, a_RE, b_FR, scale)  # type: ignore[no-untyped-call, no-any-return]


class _LinearWithLowRank(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_FE: Tensor, bias_F: Tensor | None, a_RE: Tensor, b_FR: Tensor, scale: float
    ) -> Tensor:
        x_NE = x.reshape(-1, x.shape[-1])
        inner_NR = x_NE @ a_RE.mT
        out_NF = functional.linear(x_NE, weight_FE, bias_F).addmm_(inner_NR, b_FR.mT, alpha=scale)
        ctx.save_for_backward(x, weight_FE, a_RE, b_FR, inner_NR)
        ctx.scale = scale
        return out_NF.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_FE, a_RE, b_FR, inner_NR = ctx.saved_tensors
        grad_NF, x_NE = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        wanted = ctx.needs_input_grad
        grad_inner_NR = (grad_NF @ b_FR).mul_(ctx.scale)
        grad_x = (grad_NF @ weight_FE).addmm_(grad_inner_NR, a_RE).view(x.shape) if wanted[0] else None
        grad_weight = grad_NF.mT @ x_NE if wanted[1] else None
        grad_bias = grad_NF.sum(0) if wanted[2] else None
        grad_a = grad_inner_NR.mT @ x_NE if wanted[3] else None
        grad_b = (inner_NR.mT @ grad_NF).mT.mul(ctx.scale) if wanted[4] else None
        return grad_x, grad_weight, grad_bias, grad_a, grad_b, None


class _LowRank(torch.autograd.Function):
    """``into`` comes first: where it is a view (a biased layer gives one), autograd takes the first gradient for its own."""

    @staticmethod
    def forward(ctx: Any, into: Tensor, x: Tensor, a_RE: Tensor, b_FR: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x, a_RE, b_FR)
        ctx.scale = scale
        ctx.mark_dirty(into)
        rows = into.view(-1, into.shape[-1])
        rows.addmm_(x.reshape(-1, x.shape[-1]) @ a_RE.mT, b_FR.mT, alpha=scale)
        return into

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, None]:
        x, a_RE, b_FR = ctx.saved_tensors
        grad_NF, x_NE = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        inner_NR = (grad_NF @ b_FR).mul_(ctx.scale)
        grad_x = (inner_NR @ a_RE).view(x.shape) if ctx.needs_input_grad[1] else None
        grad_a = inner_NR.mT @ x_NE if ctx.needs_input_grad[2] else None
        grad_b = (grad_NF.mT @ (x_NE @ a_RE.mT)).mul_(ctx.scale) if ctx.needs_input_grad[3] else None
        return grad, grad_x, grad_a, grad_b, None
