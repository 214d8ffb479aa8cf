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

    It keeps ``x`` for the backward and nothing else but its weights (``x a^T`` is computed again), or where ``a`` is frozen
    ``x a^T`` and no ``x``. No (F, E) tensor is made.
    """
    if into is None:
        into = x.new_zeros(*x.shape[:-1], b_FR.shape[0])
    return _LowRank.apply(into, x, a_RE, b_FR, scale)  # type: ignore[no-untyped-call, no-any-return]


def linear_with_low_rank(
    x: Tensor, weight_FE: Tensor, bias_F: Tensor | None, a_RE: Tensor, b_FR: Tensor, scale: float
) -> Tensor:
    """``x W^T + bias + scale * (x a^T) b^T``, (…, E) -> (…, F), in one piece: the products are added up where they are made.

    It keeps the R numbers of ``x a^T`` a token, and ``x`` unless weight and ``a`` are frozen.
    """
    return _LinearWithLowRank.apply(x, weight_FE, bias_F, a_RE, b_FR, scale)  # type: ignore[no-untyped-call, no-any-return]


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


class _LinearWithLowRank(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_FE: Tensor, bias_F: Tensor | None, a_RE: Tensor, b_FR: Tensor, scale: float
    ) -> Tensor:
        inner_NR = _rows(x) @ a_RE.mT
        out_NF = functional.linear(_rows(x), weight_FE, bias_F).addmm_(inner_NR, b_FR.mT, alpha=scale)
        wants_inputs = ctx.needs_input_grad[1] or ctx.needs_input_grad[3]
        ctx.save_for_backward(x if wants_inputs else None, weight_FE, a_RE, b_FR, inner_NR)
        ctx.scale = scale
        # no view of it: autograd refuses to change one in place, as Falcon does with what a projection gives
        return torch.ops.aten._unsafe_view(out_NF, (*x.shape[:-1], out_NF.shape[-1]))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_FE, a_RE, b_FR, inner_NR = ctx.saved_tensors
        grad_NF, wanted = _rows(grad), ctx.needs_input_grad
        grad_inner_NR = (grad_NF @ b_FR).mul_(ctx.scale)
        grad_x = None
        if wanted[0]:
            grad_x = (grad_NF @ weight_FE).addmm_(grad_inner_NR, a_RE).view(*grad.shape[:-1], -1)
        grad_weight = grad_NF.mT @ _rows(x) if wanted[1] else None
        grad_bias = grad_NF.sum(0) if wanted[2] else None
        grad_a = grad_inner_NR.mT @ _rows(x) if wanted[3] else None
        grad_b = (inner_NR.mT @ grad_NF).mT.mul(ctx.scale) if wanted[4] else None
        return grad_x, grad_weight, grad_bias, grad_a, grad_b, None


class _LowRank(torch.autograd.Function):
    """``into`` comes first: where it is a view (a biased layer gives one), autograd takes the first gradient for its own."""

    @staticmethod
    def forward(ctx: Any, into: Tensor, x: Tensor, a_RE: Tensor, b_FR: Tensor, scale: float) -> Tensor:
        inner_NR = _rows(x) @ a_RE.mT
        ctx.save_for_backward(x if ctx.needs_input_grad[2] else inner_NR, a_RE, b_FR)
        ctx.scale = scale
        ctx.mark_dirty(into)
        into.view(-1, into.shape[-1]).addmm_(inner_NR, b_FR.mT, alpha=scale)
        return into

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, None]:
        kept, a_RE, b_FR = ctx.saved_tensors
        grad_NF, wanted = _rows(grad), ctx.needs_input_grad
        grad_inner_NR = (grad_NF @ b_FR).mul_(ctx.scale)
        grad_x = (grad_inner_NR @ a_RE).view(*grad.shape[:-1], -1) if wanted[1] else None
        grad_a = grad_inner_NR.mT @ _rows(kept) if wanted[2] else None
        grad_b = None
        if wanted[3]:
            inner_NR = _rows(kept) @ a_RE.mT if wanted[2] else kept
            grad_b = (grad_NF.mT @ inner_NR).mul_(ctx.scale)
        return grad, grad_x, grad_a, grad_b, None
