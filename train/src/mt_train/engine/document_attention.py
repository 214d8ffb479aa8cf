"""Attention over packed rows on a CPU as one operator of a graph, which has the bounds of documents in a tensor.

A compiler that saw the lengths of documents would compile anew for each packing. It sees an operator and the shapes of what comes
out; which kernel a document takes is decided when the operator runs, as ``SdpaAttention`` decides it, and gives the same bits.

Shapes: B rows, T tokens, N query heads, K key/value heads, H head width, W width of the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mt_core.nn.blocks import Blockwise, Form, pad_widths
from mt_core.nn.short import Short, is_faster_in_blocks
from mt_core.nn.sinks import CpuFlash

_OPTIONS = "float? scale, int? window, float? softcap, int? chunk"
_FORWARD = f"(Tensor q, Tensor k, Tensor v, Tensor bounds, {_OPTIONS}) -> (Tensor, Tensor)"
_BACKWARD = (
    f"(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor bounds, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor)"
)


def attend_documents(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKW: Tensor, bounds: Tensor, form: Form) -> Tensor:
    """(B, T, N, H), (B, T, K, H), (B, T, K, W) -> (B, T, N, W). ``bounds`` are those of the documents of all rows, on the host; the
    ends of rows are among them. ``form`` has no sinks."""
    options = form.scale, form.window, form.softcap, form.chunk
    out_BTNW, _ = torch.ops.mt_train.attend_documents(q_BTNH, k_BTKH, v_BTKW, bounds, *options)
    return out_BTNW  # type: ignore[no-any-return]


class _Piece(NamedTuple):
    """Documents of one length at one place in some rows, each of which attends by itself."""

    rows: slice
    tokens: slice

    def of(self, x_BTNH: Tensor) -> Tensor:
        return x_BTNH[self.rows, self.tokens]


@torch.library.custom_op("mt_train::attend_documents", mutates_args=(), schema=_FORWARD)
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    chunk: int | None,
) -> tuple[Tensor, Tensor]:
    """Return the output, and the log-sum-exp of scores where a kernel keeps it for its backward, (B, N, T)."""
    form = Form(scale=scale, window=window, softcap=softcap)
    out_BTNW, lse_BNT = _empty_results(q, v)
    for piece in _pieces(bounds, q, chunk):
        inputs = piece.of(q), piece.of(k), piece.of(v)
        if form.needs_blocks(inputs[0].shape[1]):
            piece.of(out_BTNW).copy_(Blockwise.forward(*inputs, None, form, None))
        elif is_faster_in_blocks(inputs[0], inputs[1]):
            piece.of(out_BTNW).copy_(Short.forward(*inputs, _scale(scale, q)))
        else:
            out, lse = CpuFlash(mask=None, is_causal=True, scale=_scale(scale, q)).forward(*_by_head(*inputs))
            piece.of(out_BTNW).copy_(out.transpose(1, 2)[..., : v.shape[3]])
            lse_BNT[piece.rows, :, piece.tokens] = lse
    return out_BTNW, lse_BNT


@_forward.register_fake
def _shapes(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return _empty_results(q, v)


@torch.library.custom_op("mt_train::attend_documents_backward", mutates_args=(), schema=_BACKWARD)
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bounds: Tensor,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    chunk: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, each document by the kernel of its forward."""
    form = Form(scale=scale, window=window, softcap=softcap)
    grads = _empty_gradients(q, k, v)
    for piece in _pieces(bounds, q, chunk):
        inputs = piece.of(q), piece.of(k), piece.of(v)
        if form.needs_blocks(inputs[0].shape[1]):
            found = _through(Blockwise, piece.of(grad), *inputs, None, form, None)
        elif is_faster_in_blocks(inputs[0], inputs[1]):
            found = _through(Short, piece.of(grad), *inputs, _scale(scale, q))
        else:
            flash = CpuFlash(mask=None, is_causal=True, scale=_scale(scale, q))
            heads_q, heads_k, heads_v = _by_head(*inputs)
            width = heads_v.shape[-1]
            heads_grad, heads_out = (F.pad(piece.of(x), (0, width - x.shape[3])).transpose(1, 2) for x in (grad, out))
            own_lse = lse[piece.rows, :, piece.tokens].contiguous()
            found = flash.backward(heads_grad, heads_q, heads_k, heads_v, heads_out, own_lse)
            found = tuple(each.transpose(1, 2)[..., : x.shape[3]] for each, x in zip(found, inputs, strict=True))
        for whole, part in zip(grads, found, strict=False):
            piece.of(whole).copy_(part)
    return grads


@_backward.register_fake
def _gradient_shapes(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(q, k, v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bounds, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, bounds)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grads = torch.ops.mt_train.attend_documents_backward(grad, *ctx.saved_tensors, *ctx.options)
    return *grads, None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_keep)


def _pieces(bounds: Tensor, q_BTNH: Tensor, chunk: int | None) -> Iterator[_Piece]:
    """Yield the documents, or their chunks, which are documents to a kernel; those of all rows together where rows are divided alike."""
    rows, length = q_BTNH.shape[:2]
    whole: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    for begin, end in pairwise(bounds.tolist()):
        step = chunk or end - begin
        for first in range(begin, end, step):
            row = first // length
            whole[row].append((first - row * length, min(first + step, end) - row * length))
    if all(row == whole[0] for row in whole):
        yield from (_Piece(slice(0, rows), slice(*each)) for each in whole[0])
    else:
        yield from (_Piece(slice(number, number + 1), slice(*each)) for number, row in enumerate(whole) for each in row)


class _Inputs:
    """Stands for autograd's context of a function that keeps its inputs alone."""

    saved_tensors: tuple[Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


def _through(function: Any, grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Return the gradients of a function's inputs."""
    context = _Inputs()
    function.setup_context(context, inputs, None)
    found: tuple[Tensor, ...] = function.backward(context, grad)
    return found[:3]


def _by_head(*tensors_BTNH: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.transpose(1, 2) for each in pad_widths(*tensors_BTNH))


def _scale(scale: float | None, q_BTNH: Tensor) -> float:
    return float(q_BTNH.shape[3]) ** -0.5 if scale is None else scale


def _empty_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    rows, length, heads, _ = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(rows, length, heads, v.shape[3]), q.new_zeros(rows, heads, length, dtype=exact)


def _empty_gradients(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    one, two, three = (each.new_empty(each.shape) for each in tensors)
    return one, two, three
