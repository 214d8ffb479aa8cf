"""Attention with a window, a soft-cap or sinks, a block of queries at a time: no tensor is as large as [T, T].

The scores of a block live until its result is there; the backward computes them again, as flash attention does
(https://arxiv.org/abs/2205.14135). A block sees the keys that its window reaches and no others.

Shapes: B rows, T query tokens, S key tokens (the T queries are the last of them), N query heads, K key/value heads,
G = N / K queries that share a key, H head width, W width of the values; t and s tokens of one block, L = G t.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mt_core.errors import UsageError

SCORES = 2**16
"""Scores of one block and one head, about: the queries of a block are fewer where each sees more keys."""
FEWEST = 16
"""Queries of a block at least, so that products stay worth their while."""


class Form(NamedTuple):
    """The ``AttentionOptions`` of one call."""

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks_N: Tensor | None = None
    chunk: int | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any], q_BTNH: Tensor, k_BSKH: Tensor, v_BSKW: Tensor) -> Form:
        """Read the options of a call on such tensors. Raises ``UsageError`` for what no attention has."""
        if unknown := options.keys() - set(cls._fields):
            raise UsageError(f"attention has no option {', '.join(sorted(unknown))}; it has {', '.join(cls._fields)}")
        form, heads = cls(**options), q_BTNH.shape[2]
        if k_BSKH.shape[:3] != v_BSKW.shape[:3] or k_BSKH.shape[3] != q_BTNH.shape[3] or heads % k_BSKH.shape[2]:
            shapes = ", ".join(str(tuple(x.shape)) for x in (q_BTNH, k_BSKH, v_BSKW))
            raise UsageError(
                f"queries, keys and values of {shapes} do not fit: (B, T, N, H), (B, S, K, H), (B, S, K, W)"
            )
        for name in ("window", "softcap", "chunk"):
            if (value := getattr(form, name)) is not None and not value > 0:
                raise UsageError(f"{name} of attention is {value}; give one above 0, or None for none")
        if form.sinks_N is not None and form.sinks_N.shape != (heads,):
            raise UsageError(f"sinks_N is {tuple(form.sinks_N.shape)}; give one for each of the {heads} query heads")
        return form

    @property
    def reach(self) -> int | None:
        """Return how many tokens a query sees at most, itself included; ``None`` for all."""
        return min((size for size in (self.window, self.chunk) if size is not None), default=None)

    def needs_blocks(self, seen: int) -> bool:
        """Return whether, of so many tokens, scores are changed or not all are seen, which torch's kernels for CPUs cannot do."""
        return self.softcap is not None or (self.reach is not None and self.reach < seen)


def pad_widths(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Pad queries, keys and values with zeros to one width, for kernels that have one: scores and results stay the same."""
    width = max(x.shape[-1] for x in tensors)
    return tuple(x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in tensors)


def blockwise(q_BTNH: Tensor, k_BSKH: Tensor, v_BSKW: Tensor, form: Form, padding_B: Tensor | None = None) -> Tensor:
    """(B, T, N, H), (B, S, K, H), (B, S, K, W) -> (B, T, N, W), rows of one document each.

    A query sees itself and what comes before it, as far back as window and chunk; never the first ``padding_B`` tokens of
    its row, unless it is one of them.
    """
    sinks_N, form = form.sinks_N, form._replace(sinks_N=None)
    return Blockwise.apply(q_BTNH, k_BSKH, v_BSKW, sinks_N, form, padding_B)  # type: ignore[no-untyped-call, no-any-return]


class _Block(NamedTuple):
    """Queries [start, end) among the T, keys [first, last) among the S."""

    queries: slice
    keys: slice


def _blocks(length: int, seen: int, reach: int | None) -> Iterator[_Block]:
    past = seen - length
    keys = seen if reach is None else min(seen, 2 * reach)
    size = max(FEWEST, min(SCORES // keys, keys))
    for start in range(0, length, size):
        end = min(start + size, length)
        first = 0 if reach is None else max(0, past + start - reach + 1)
        yield _Block(slice(start, end), slice(first, past + end))


class Blockwise(torch.autograd.Function):
    """Attention block by block, which keeps its inputs alone for the backward."""

    @staticmethod
    def forward(
        q_BTNH: Tensor, k_BSKH: Tensor, v_BSKW: Tensor, sinks_N: Tensor | None, form: Form, padding_B: Tensor | None
    ) -> Tensor:
        out_BTNW = q_BTNH.new_empty(*q_BTNH.shape[:3], v_BSKW.shape[3])
        for block in _blocks(q_BTNH.shape[1], k_BSKH.shape[1], form.reach):
            q_BKLH, k_BKsH, v_BKsW = _cut_block(q_BTNH, k_BSKH, v_BSKW, sinks_N, block)
            visible = _visibility(block, q_BTNH, k_BSKH, form, padding_B)
            weights_BKLs, _ = _weights(q_BKLH, k_BKsH, form, visible, sinks_N)
            out_BTNW[:, block.queries] = _join_heads(weights_BKLs @ v_BKsW, q_BTNH.shape[2])
        return out_BTNW

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.form, ctx.padding_B = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_BTNW: Tensor) -> tuple[Tensor | None, ...]:
        q_BTNH, k_BSKH, v_BSKW, sinks_N = ctx.saved_tensors
        form: Form = ctx.form
        heads, kv_heads = q_BTNH.shape[2], k_BSKH.shape[2]
        grad_q_BTNH = torch.empty_like(q_BTNH)
        grad_k_BKSH, grad_v_BKSW = (x.new_zeros(x.transpose(1, 2).shape, dtype=_exact(x)) for x in (k_BSKH, v_BSKW))
        grad_sinks_KG = q_BTNH.new_zeros(kv_heads, heads // kv_heads, dtype=_exact(q_BTNH))
        for block in _blocks(q_BTNH.shape[1], k_BSKH.shape[1], form.reach):
            q_BKLH, k_BKsH, v_BKsW = _cut_block(q_BTNH, k_BSKH, v_BSKW, sinks_N, block)
            keys = block.keys.stop - block.keys.start
            grad_BKLW = _split_heads(grad_BTNW[:, block.queries], kv_heads)
            visible = _visibility(block, q_BTNH, k_BSKH, form, ctx.padding_B)
            weights_BKLs, slope_BKLs = _weights(q_BKLH, k_BKsH, form, visible, sinks_N, with_slope=True)
            grad_v_BKSW[:, :, block.keys] += (weights_BKLs.mT @ grad_BKLW)[:, :, :keys]
            scores_BKLs = _through_softmax(weights_BKLs, grad_BKLW @ v_BKsW.mT)
            if sinks_N is not None:
                grad_sinks_KG += scores_BKLs[..., -1].sum(0).view(kv_heads, heads // kv_heads, -1).sum(-1)
            scores_BKLs.mul_(_scale(form, q_BKLH))
            if slope_BKLs is not None:
                scores_BKLs.mul_(slope_BKLs)
            grad_q_BTNH[:, block.queries] = _join_heads(scores_BKLs @ k_BKsH, heads)
            grad_k_BKSH[:, :, block.keys] += (scores_BKLs.mT @ q_BKLH)[:, :, :keys]
        grad_k_BSKH, grad_v_BSKW = (x.transpose(1, 2).to(k_BSKH.dtype) for x in (grad_k_BKSH, grad_v_BKSW))
        grad_sinks_N = None if sinks_N is None else grad_sinks_KG.flatten().to(sinks_N.dtype)
        return grad_q_BTNH, grad_k_BSKH, grad_v_BSKW, grad_sinks_N, None, None


def _exact(x: Tensor) -> torch.dtype:
    """Return the dtype that blocks compute in: fp32, or that of wider inputs."""
    return torch.promote_types(x.dtype, torch.float32)


def _cut_block(
    q_BTNH: Tensor, k_BSKH: Tensor, v_BSKW: Tensor, sinks_N: Tensor | None, block: _Block
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slices that one block multiplies, in fp32 at least: (B, K, L, H), (B, K, s, H), (B, K, s, W).

    With sinks keys and values have one more at the end, of zeros: its column of the scores is the sinks'.
    """
    k_BKsH, v_BKsW = (x[:, block.keys].transpose(1, 2).to(_exact(x)) for x in (k_BSKH, v_BSKW))
    if sinks_N is not None:
        k_BKsH, v_BKsW = (F.pad(x, (0, 0, 0, 1)) for x in (k_BKsH, v_BKsW))
    return _split_heads(q_BTNH[:, block.queries], k_BSKH.shape[2]), k_BKsH, v_BKsW


def _split_heads(x_BtNH: Tensor, kv_heads: int) -> Tensor:
    """(B, t, N, H) -> (B, K, G t, H) in fp32 at least: the queries of one key head, one below the other."""
    rows, tokens, heads, width = x_BtNH.shape
    groups_BtKGH = x_BtNH.reshape(rows, tokens, kv_heads, heads // kv_heads, width)
    return groups_BtKGH.permute(0, 2, 3, 1, 4).flatten(2, 3).to(_exact(x_BtNH))


def _join_heads(x_BKLH: Tensor, heads: int) -> Tensor:
    """The way back: (B, K, G t, H) -> (B, t, N, H)."""
    rows, kv_heads, _, width = x_BKLH.shape
    groups_BKGtH = x_BKLH.reshape(rows, kv_heads, heads // kv_heads, -1, width)
    return groups_BKGtH.permute(0, 3, 1, 2, 4).flatten(2, 3)


def _visibility(block: _Block, q_BTNH: Tensor, k_BSKH: Tensor, form: Form, padding_B: Tensor | None) -> Tensor:
    """Return what is true where a query may look: (t, s), or (B, 1, 1, t, s) with padding."""
    past = k_BSKH.shape[1] - q_BTNH.shape[1]
    queries_t1 = torch.arange(past + block.queries.start, past + block.queries.stop, device=q_BTNH.device)[:, None]
    keys_s = torch.arange(block.keys.start, block.keys.stop, device=q_BTNH.device)
    visible_ts = keys_s <= queries_t1
    if form.window is not None:
        visible_ts &= keys_s > queries_t1 - form.window
    if form.chunk is not None:
        first_B11 = 0 if padding_B is None else padding_B[:, None, None]
        same_chunk = (keys_s - first_B11) // form.chunk == (queries_t1 - first_B11) // form.chunk
        visible_ts = visible_ts & same_chunk
    if padding_B is None:
        return visible_ts
    # padding sees itself: a softmax over nothing is no number
    return (visible_ts & (keys_s >= padding_B[:, None, None]) | (keys_s == queries_t1))[:, None, None]


def _weights(
    q_BKLH: Tensor, k_BKsH: Tensor, form: Form, visible: Tensor, sinks_N: Tensor | None, *, with_slope: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Softmax of the block's scores, and the slope of the soft-cap where it is asked for; the last column is the sinks'."""
    scores_BKLs = (q_BKLH @ k_BKsH.mT).mul_(_scale(form, q_BKLH))
    slope_BKLs = None
    if form.softcap is not None:
        scores_BKLs.div_(form.softcap).tanh_()
        slope_BKLs = 1 - scores_BKLs.square() if with_slope else None
        scores_BKLs.mul_(form.softcap)
    scores_BKGts = scores_BKLs.view(*scores_BKLs.shape[:2], -1, visible.shape[-2], scores_BKLs.shape[3])
    scores_BKGts[..., : visible.shape[-1]].masked_fill_(~visible, -torch.inf)
    if sinks_N is not None:
        scores_BKGts[..., -1] = sinks_N.view(k_BKsH.shape[1], -1, 1)
    return scores_BKLs.softmax(-1), slope_BKLs


def _scale(form: Form, q_BKLH: Tensor) -> float:
    return q_BKLH.shape[-1] ** -0.5 if form.scale is None else form.scale


def _through_softmax(weights_BKLs: Tensor, grad_BKLs: Tensor) -> Tensor:
    """Return the gradient of the scores from that of the weights."""
    return weights_BKLs * (grad_BKLs - (weights_BKLs * grad_BKLs).sum(-1, keepdim=True))
