"""Attention with a window or a soft-cap, a block of queries at a time: no tensor is as large as [T, T].

The scores of a block live until its result is there; the backward computes them again, as flash attention does
(https://arxiv.org/abs/2205.14135). A block sees the keys that its window reaches and no others.

Shapes: B rows, T query tokens, S key tokens (the T queries are the last of them), N query heads, K key/value heads,
G = N / K queries that share a key, H head width; t and s tokens of one block, L = G t.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

SCORES = 2**16
"""Scores of one block and one head, about: the queries of a block are fewer where each sees more keys."""
FEWEST = 16
"""Queries of a block at least, so that products stay worth their while."""


class Form(NamedTuple):
    """The ``AttentionOptions`` of one call."""

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None


def blockwise(q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, form: Form, padding_B: Tensor | None = None) -> Tensor:
    """(B, T, N, H), (B, S, K, H), (B, S, K, H) -> (B, T, N, H), rows of one document each.

    A query sees itself and what comes before it, as far back as the window; never the first ``padding_B`` tokens of its
    row, unless it is one of them.
    """
    return _Blockwise.apply(q_BTNH, k_BSKH, v_BSKH, form, padding_B)  # type: ignore[no-untyped-call, no-any-return]


class _Block(NamedTuple):
    """Queries [start, end) among the T, keys [first, last) among the S."""

    queries: slice
    keys: slice


def _blocks(length: int, seen: int, window: int | None) -> Iterator[_Block]:
    past = seen - length
    reach = seen if window is None else min(seen, 2 * window)
    size = max(FEWEST, min(SCORES // reach, reach))
    for start in range(0, length, size):
        end = min(start + size, length)
        first = 0 if window is None else max(0, past + start - window + 1)
        yield _Block(slice(start, end), slice(first, past + end))


class _Blockwise(torch.autograd.Function):
    """Keeps its three inputs."""

    @staticmethod
    def forward(
        ctx: Any, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, form: Form, padding_B: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(q_BTNH, k_BSKH, v_BSKH)
        ctx.form, ctx.padding_B = form, padding_B
        out_BTNH = torch.empty_like(q_BTNH)
        for block in _blocks(q_BTNH.shape[1], k_BSKH.shape[1], form.window):
            q_BKLH, k_BKsH, v_BKsH = _cut_block(q_BTNH, k_BSKH, v_BSKH, block)
            weights_BKLs, _ = _weights(q_BKLH, k_BKsH, form, _visibility(block, q_BTNH, k_BSKH, form, padding_B))
            out_BTNH[:, block.queries] = _join_heads(weights_BKLs @ v_BKsH, q_BTNH.shape[2])
        return out_BTNH

    @staticmethod
    def backward(ctx: Any, grad_BTNH: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_BTNH, k_BSKH, v_BSKH = ctx.saved_tensors
        form: Form = ctx.form
        heads = q_BTNH.shape[2]
        grad_q_BTNH = torch.empty_like(q_BTNH)
        grad_k_BKSH, grad_v_BKSH = (torch.zeros_like(x.transpose(1, 2), dtype=torch.float32) for x in (k_BSKH, v_BSKH))
        for block in _blocks(q_BTNH.shape[1], k_BSKH.shape[1], form.window):
            q_BKLH, k_BKsH, v_BKsH = _cut_block(q_BTNH, k_BSKH, v_BSKH, block)
            grad_BKLH = _split_heads(grad_BTNH[:, block.queries], k_BSKH.shape[2])
            visible = _visibility(block, q_BTNH, k_BSKH, form, ctx.padding_B)
            weights_BKLs, slope_BKLs = _weights(q_BKLH, k_BKsH, form, visible, with_slope=True)
            grad_v_BKSH[:, :, block.keys] += weights_BKLs.mT @ grad_BKLH
            scores_BKLs = _through_softmax(weights_BKLs, grad_BKLH @ v_BKsH.mT).mul_(_scale(form, q_BKLH))
            if slope_BKLs is not None:
                scores_BKLs.mul_(slope_BKLs)
            grad_q_BTNH[:, block.queries] = _join_heads(scores_BKLs @ k_BKsH, heads)
            grad_k_BKSH[:, :, block.keys] += scores_BKLs.mT @ q_BKLH
        grad_k_BSKH, grad_v_BSKH = (x.transpose(1, 2).to(k_BSKH.dtype) for x in (grad_k_BKSH, grad_v_BKSH))
        return grad_q_BTNH, grad_k_BSKH, grad_v_BSKH, None, None


def _cut_block(q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, block: _Block) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slices that one block multiplies, in fp32: (B, K, L, H), (B, K, s, H), (B, K, s, H)."""
    k_BKsH, v_BKsH = (x[:, block.keys].transpose(1, 2).float() for x in (k_BSKH, v_BSKH))
    return _split_heads(q_BTNH[:, block.queries], k_BSKH.shape[2]), k_BKsH, v_BKsH


def _split_heads(x_BtNH: Tensor, kv_heads: int) -> Tensor:
    """(B, t, N, H) -> (B, K, G t, H) in fp32: the queries of one key head, one below the other."""
    rows, tokens, heads, width = x_BtNH.shape
    groups_BtKGH = x_BtNH.reshape(rows, tokens, kv_heads, heads // kv_heads, width)
    return groups_BtKGH.permute(0, 2, 3, 1, 4).flatten(2, 3).float()


def _join_heads(x_BKLH: Tensor, heads: int) -> Tensor:
    """The way back: (B, K, G t, H) -> (B, t, N, H)."""
    rows, kv_heads, _, width = x_BKLH.shape
    groups_BKGtH = x_BKLH.reshape(rows, kv_heads, heads // kv_heads, -1, width)
    return groups_BKGtH.permute(0, 3, 1, 2, 4).flatten(2, 3)


def _visibility(block: _Block, q_BTNH: Tensor, k_BSKH: Tensor, form: Form, padding_B: Tensor | None) -> Tensor:
    """True where a query may look: (t, s), or (B, 1, 1, t, s) with padding."""
    past = k_BSKH.shape[1] - q_BTNH.shape[1]
    queries_t1 = torch.arange(past + block.queries.start, past + block.queries.stop, device=q_BTNH.device)[:, None]
    keys_s = torch.arange(block.keys.start, block.keys.stop, device=q_BTNH.device)
    visible_ts = keys_s <= queries_t1
    if form.window is not None:
        visible_ts &= keys_s > queries_t1 - form.window
    if padding_B is None:
        return visible_ts
    # padding sees itself: a softmax over nothing is no number
    return (visible_ts & (keys_s >= padding_B[:, None, None]) | (keys_s == queries_t1))[:, None, None]


def _weights(
    q_BKLH: Tensor, k_BKsH: Tensor, form: Form, visible: Tensor, *, with_slope: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Softmax of the block's scores, and the slope of the soft-cap where it is asked for."""
    scores_BKLs = (q_BKLH @ k_BKsH.mT).mul_(_scale(form, q_BKLH))
    slope_BKLs = None
    if form.softcap is not None:
        scores_BKLs.div_(form.softcap).tanh_()
        slope_BKLs = 1 - scores_BKLs.square() if with_slope else None
        scores_BKLs.mul_(form.softcap)
    rows, kv_heads, _, keys = scores_BKLs.shape
    scores_BKLs.view(rows, kv_heads, -1, visible.shape[-2], keys).masked_fill_(~visible, -torch.inf)
    return scores_BKLs.softmax(-1), slope_BKLs


def _scale(form: Form, q_BKLH: Tensor) -> float:
    return q_BKLH.shape[-1] ** -0.5 if form.scale is None else form.scale


def _through_softmax(weights_BKLs: Tensor, grad_BKLs: Tensor) -> Tensor:
    """The gradient of the scores from that of the weights."""
    return weights_BKLs * (grad_BKLs - (weights_BKLs * grad_BKLs).sum(-1, keepdim=True))
