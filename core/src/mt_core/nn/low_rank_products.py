"""Products with a pair of small matrices, which keep little for the backward and make no tensor of the weight's size.

Shapes: E inputs, F outputs, R rank, N rows, with any dimensions before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class LowRank(NamedTuple):
    """A linear layer and a low-rank pair, as arguments of ``linear_with_low_rank``."""

    weight_FE: Tensor
    bias_F: Tensor | None
    a_RE: Tensor
    b_FR: Tensor
    scale: float


def linears_with_low_rank(x: Tensor, layers: Sequence[LowRank]) -> tuple[Tensor, ...]:
    """``linear_with_low_rank`` of one input in several layers; their ``a`` are one product, and the input's gradient is one sum."""
    given, scales = _spread(layers)
    return _Linears.apply(x, scales, *given)  # type: ignore[no-untyped-call, no-any-return]


def gated_mlp_with_low_rank(
    x: Tensor, layers: Sequence[LowRank], activation: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """``down(activation(gate(x), up(x)))`` of layers gate, up and down, (…, E) -> (…, E).

    It keeps ``x``, what goes into the activation, and the ranks' numbers; what comes out of it is computed again in the backward.
    """
    given, scales = _spread(layers)
    return _GatedMLP.apply(x, activation, scales, *given)  # type: ignore[no-untyped-call, no-any-return]


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


_Given = tuple[Tensor, Tensor | None, Tensor, Tensor]
"""Weight, bias, a and b of a layer."""


def _spread(layers: Sequence[LowRank]) -> tuple[list[Tensor | None], tuple[float, ...]]:
    return [each for layer in layers for each in layer[:4]], tuple(layer.scale for layer in layers)


def _layers(given: Sequence[Any]) -> list[_Given]:
    return [(given[i], given[i + 1], given[i + 2], given[i + 3]) for i in range(0, len(given), 4)]


def _multiply(x_NE: Tensor, layers: Sequence[_Given], scales: Sequence[float]) -> tuple[list[Tensor], list[Tensor]]:
    """Return each layer's output, and the ranks' numbers of each."""
    stacked_NR = x_NE @ torch.cat([a_RE for _, _, a_RE, _ in layers]).mT
    inner_NR = torch.split(stacked_NR, [len(layer[2]) for layer in layers], 1)
    outs_NF = [
        functional.linear(x_NE, weight_FE, bias_F).addmm_(each_NR, b_FR.mT, alpha=scale)
        for (weight_FE, bias_F, _, b_FR), each_NR, scale in zip(layers, inner_NR, scales, strict=True)
    ]
    return outs_NF, list(inner_NR)


def _backward(
    x_NE: Tensor | None,
    inner_NR: Sequence[Tensor],
    grads_NF: Sequence[Tensor],
    layers: Sequence[_Given],
    scales: Sequence[float],
    wanted: Sequence[bool],
    *,
    wants_x: bool = True,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return the gradient of the input, and those of weight, bias, a and b of each layer."""
    grad_x_NE, rows = None, list(zip(grads_NF, layers, scales, inner_NR, strict=True))
    grads_inner_NR = [(grad_NF @ b_FR).mul_(scale) for grad_NF, (_, _, _, b_FR), scale, _ in rows]
    if wants_x:
        for grad_NF, (weight_FE, *_), _, _ in rows:
            grad_x_NE = grad_NF @ weight_FE if grad_x_NE is None else grad_x_NE.addmm_(grad_NF, weight_FE)
        assert grad_x_NE is not None, "there is a layer"
        grad_x_NE.addmm_(torch.cat(grads_inner_NR, 1), torch.cat([a_RE for _, _, a_RE, _ in layers]))
    grads_a: Sequence[Tensor | None] = [None] * len(rows)
    if x_NE is not None and any(wanted[2::4]):
        grads_a = torch.split(torch.cat(grads_inner_NR, 1).mT @ x_NE, [len(layer[2]) for layer in layers])
    found: list[Tensor | None] = []
    for place, (grad_NF, _, scale, each_NR) in enumerate(rows):
        of_weight, of_bias, of_a, of_b = wanted[4 * place : 4 * place + 4]
        found += [grad_NF.mT @ x_NE if of_weight and x_NE is not None else None, grad_NF.sum(0) if of_bias else None]
        found += [grads_a[place] if of_a else None, (each_NR.mT @ grad_NF).mT.mul(scale) if of_b else None]
    return grad_x_NE, found


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: tuple[float, ...], *given: Tensor | None) -> tuple[Tensor, ...]:
        wanted = ctx.needs_input_grad[2:]
        outs_NF, inner_NR = _multiply(_rows(x), _layers(given), scales)
        ctx.save_for_backward(x if any(wanted[::4]) or any(wanted[2::4]) else None, *inner_NR, *given)
        ctx.scales = scales
        return tuple(torch.ops.aten._unsafe_view(out_NF, (*x.shape[:-1], out_NF.shape[-1])) for out_NF in outs_NF)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        inner_NR, layers = rest[: len(grads)], _layers(rest[len(grads) :])
        x_NE, grads_NF = None if x is None else _rows(x), [_rows(grad) for grad in grads]
        wants_x, _, *wanted = ctx.needs_input_grad
        grad_x, found = _backward(x_NE, inner_NR, grads_NF, layers, ctx.scales, wanted, wants_x=wants_x)
        return None if grad_x is None else grad_x.view(*grads[0].shape[:-1], -1), None, *found


class _GatedMLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        activation: Callable[[Tensor, Tensor], Tensor],
        scales: tuple[float, ...],
        *given: Tensor | None,
    ) -> Tensor:
        wanted, layers = ctx.needs_input_grad[3:], _layers(given)
        (gate_NF, up_NF), inner_NR = _multiply(_rows(x), layers[:2], scales[:2])
        (out_NE,), last_NR = _multiply(activation(gate_NF, up_NF), layers[2:], scales[2:])
        kept = x if any(wanted[:8:4]) or any(wanted[2:8:4]) else None
        ctx.save_for_backward(kept, gate_NF, up_NF, *inner_NR, *last_NR, *given)
        ctx.activation, ctx.scales = activation, scales
        return torch.ops.aten._unsafe_view(out_NE, (*x.shape[:-1], out_NE.shape[-1]))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gate_NF, up_NF, *rest = ctx.saved_tensors
        inner_NR, layers = rest[:3], _layers(rest[3:])
        wants_x, _, _, *wanted = ctx.needs_input_grad
        with torch.enable_grad():
            inputs_NF = [each.detach().requires_grad_() for each in (gate_NF, up_NF)]
            hidden_NF = ctx.activation(*inputs_NF)
        shown_NF, last = hidden_NF.detach(), slice(2, 3)
        grad_hidden, of_down = _backward(
            shown_NF, inner_NR[last], [_rows(grad)], layers[last], ctx.scales[last], wanted[8:]
        )
        grads_NF = torch.autograd.grad(hidden_NF, inputs_NF, grad_hidden)
        del hidden_NF, shown_NF, grad_hidden
        x_NE = None if x is None else _rows(x)
        grad_x, found = _backward(x_NE, inner_NR[:2], grads_NF, layers[:2], ctx.scales[:2], wanted[:8], wants_x=wants_x)
        return None if grad_x is None else grad_x.view(*grad.shape[:-1], -1), None, None, *found, *of_down
