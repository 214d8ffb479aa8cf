"""Causal attention of short documents on a CPU, in blocks of queries: no tensor is as large as [T, T].

torch's flash kernel for CPUs reads a key head once for each query head that shares it. In short rows batched products of a block of
queries by all keys that it sees are faster, above all in the backward (docs/log.md), which computes the probabilities again: the
inputs alone are kept.

Shapes: B rows, T tokens, N query heads, K key/value heads, G = N / K queries that share a key, H head width, W width of the
values; t queries of a block, L = G t, s keys that it sees, C = B K.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

LONGEST = 512
"""Tokens: above it the kernel, which leaves out more of what comes later, is as fast or faster."""
SHORTEST = 16
"""Tokens: below it a block's calls cost more than they save."""
QUERIES = {torch.float32: 64, torch.bfloat16: 128}
"""Queries of a block: what is fastest for products by MKL and by oneDNN."""
SCORES = {torch.float32: 2**18, torch.bfloat16: 2**21}
"""Scores of a block, of all heads: rows are done together up to it. In fp32 they stay in a core's cache, in bf16 calls cost more."""


@cache
def processor_has(*features: str) -> bool:
    """Return whether the processor has one of these features, by torch's names for them (``amx_bf16``)."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(feature) for feature in features)


def is_faster_in_blocks(q_BTNH: Tensor, k_BTKH: Tensor) -> bool:
    """Return whether blocks are faster than the kernel in such rows, by what was measured: on processors with products of bf16.

    bf16: where queries share keys, which the kernel reads for each of them, or where there is little to multiply. fp32: where heads
    are wide, so that MKL's products weigh more than a block's other calls.
    """
    length, heads, width = q_BTNH.shape[1:]
    if q_BTNH.device.type != "cpu" or not SHORTEST <= length <= LONGEST or not processor_has("amx_bf16", "avx512_bf16"):
        return False
    if q_BTNH.dtype == torch.bfloat16:
        return heads > k_BTKH.shape[2] or width * length <= 2**15
    return q_BTNH.dtype == torch.float32 and width >= 128 and length >= 256


def attend_in_blocks(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKW: Tensor, scale: float | None) -> Tensor:
    """(B, T, N, H), (B, T, K, H), (B, T, K, W) -> (B, T, N, W), fp32 or bf16; a token sees itself and what comes before it."""
    scale = q_BTNH.shape[3] ** -0.5 if scale is None else scale
    return Short.apply(q_BTNH, k_BTKH, v_BTKW, scale)  # type: ignore[no-untyped-call, no-any-return]


class Short(torch.autograd.Function):
    """``attend_in_blocks``, which keeps its inputs alone for the backward."""

    @staticmethod
    def forward(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKW: Tensor, scale: float) -> Tensor:
        kv_heads = k_BTKH.shape[2]
        if q_BTNH.dtype == torch.bfloat16 and processor_has("amx_bf16") and q_BTNH.shape[3] == v_BTKW.shape[3]:
            q, k, v = (x.transpose(1, 2) for x in (q_BTNH, k_BTKH, v_BTKW))  # forward, the kernel uses AMX too
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)
        k_CTH, v_CTW, later_tt = _fold(k_BTKH, kv_heads), _fold(v_BTKW, kv_heads), _later(q_BTNH)
        out_BTNW = q_BTNH.new_empty(*q_BTNH.shape[:3], v_BTKW.shape[3])
        for rows, heads, queries in _blocks(q_BTNH, kv_heads):
            q_CLH = _fold(q_BTNH[rows, queries], kv_heads)
            weights_CLs = _weights(q_CLH, k_CTH[heads, : queries.stop], later_tt, queries, scale)
            _unfold(weights_CLs @ v_CTW[heads, : queries.stop], out_BTNW[rows, queries], kv_heads)
        return out_BTNW

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.scale = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_BTNW: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_BTNH, k_BTKH, v_BTKW = ctx.saved_tensors
        scale, kv_heads = ctx.scale, k_BTKH.shape[2]
        k_CTH, v_CTW, later_tt = _fold(k_BTKH, kv_heads), _fold(v_BTKW, kv_heads), _later(q_BTNH)
        grad_q_BTNH = torch.empty_like(q_BTNH)
        grad_k_CTH, grad_v_CTW = (torch.zeros_like(x, dtype=torch.float32) for x in (k_CTH, v_CTW))
        for rows, heads, queries in _blocks(q_BTNH, kv_heads):
            q_CLH, grad_CLW = (_fold(x[rows, queries], kv_heads) for x in (q_BTNH, grad_BTNW))
            k_CsH, v_CsW = (x[heads, : queries.stop] for x in (k_CTH, v_CTW))
            weights_CLs = _weights(q_CLH, k_CsH, later_tt, queries, scale)
            _add_product(grad_v_CTW[heads, : queries.stop], weights_CLs.mT, grad_CLW, 1.0)
            grad_CLs = torch._softmax_backward_data(grad_CLW @ v_CsW.mT, weights_CLs, -1, weights_CLs.dtype)
            _add_product(grad_k_CTH[heads, : queries.stop], grad_CLs.mT, q_CLH, scale)
            _unfold(_product(grad_CLs, k_CsH, scale), grad_q_BTNH[rows, queries], kv_heads)
        grads = (x.view(len(q_BTNH), kv_heads, *x.shape[1:]).transpose(1, 2) for x in (grad_k_CTH, grad_v_CTW))
        grad_k_BTKH, grad_v_BTKW = (x.to(q_BTNH.dtype) for x in grads)
        return grad_q_BTNH, grad_k_BTKH, grad_v_BTKW, None


def _blocks(q_BTNH: Tensor, kv_heads: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield rows, their heads among the C, and queries. A row has the same bits whatever is beside it (a test holds it)."""
    rows, length, heads, _ = q_BTNH.shape
    size = min(length, QUERIES[q_BTNH.dtype])
    together = max(1, SCORES[q_BTNH.dtype] // (heads * size * length))
    for row in range(0, rows, together):
        end = min(row + together, rows)
        for first in range(0, length, size):
            yield slice(row, end), slice(row * kv_heads, end * kv_heads), slice(first, min(first + size, length))


def _later(q_BTNH: Tensor) -> Tensor:
    """Return what is added to the scores of a block's queries and the keys of the same tokens."""
    size = min(q_BTNH.shape[1], QUERIES[q_BTNH.dtype])
    return q_BTNH.new_full((size, size), -torch.inf).triu_(1)


def _weights(q_CLH: Tensor, k_CsH: Tensor, later_tt: Tensor, queries: slice, scale: float) -> Tensor:
    """Softmax of a block's scores; its queries are the last of the keys that they see."""
    scores_CLs, size = _product(q_CLH, k_CsH.mT, scale), queries.stop - queries.start
    scores_CLs.view(len(k_CsH), -1, size, queries.stop)[..., queries.start :].add_(later_tt[:size, :size])
    return scores_CLs.softmax(-1)


def _product(one: Tensor, other: Tensor, scale: float) -> Tensor:
    return torch.baddbmm(one.new_empty(1), one, other, beta=0, alpha=scale)


def _add_product(sums: Tensor, one: Tensor, other: Tensor, scale: float) -> None:
    """Add a product to sums in fp32."""
    if one.dtype == sums.dtype:
        sums.baddbmm_(one, other, alpha=scale)
    else:
        sums.add_(one @ other, alpha=scale)


def _fold(x_BtNH: Tensor, kv_heads: int) -> Tensor:
    """(B, t, N, H) -> (C, L, H): the queries that share a key head, one below the other."""
    return (
        x_BtNH.reshape(*x_BtNH.shape[:2], kv_heads, -1, x_BtNH.shape[3])
        .permute(0, 2, 3, 1, 4)
        .flatten(2, 3)
        .flatten(0, 1)
    )


def _unfold(x_CLH: Tensor, out_BtNH: Tensor, kv_heads: int) -> None:
    """Write it back into ``out_BtNH``."""
    out_BKGtH = out_BtNH.view(*out_BtNH.shape[:2], kv_heads, -1, out_BtNH.shape[3]).permute(0, 2, 3, 1, 4)
    out_BKGtH.copy_(x_CLH.view(out_BKGtH.shape))
