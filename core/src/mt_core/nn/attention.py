"""Causal attention over packed rows, by torch's own kernels or block by block, never with a [T, T] mask.

Shapes: B rows, T query tokens, S key tokens (T plus what a cache holds), N query heads, K key/value heads, H head width,
W width of the values.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mt_core.errors import UsageError
from mt_core.nn.batch import DocumentLengths, document_lengths
from mt_core.nn.blocks import Form, blockwise, pad_widths
from mt_core.nn.compilation import exclude_from_compile
from mt_core.nn.context import AttentionOptions, BlockContext
from mt_core.nn.flex import flexible_attention
from mt_core.nn.short import attend_in_blocks, is_faster_in_blocks
from mt_core.nn.sinks import CpuFlash, attend_with_sinks
from mt_core.nn.varlen import varlen

BACKENDS: dict[str, list[SDPBackend]] = {
    "math": [SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "flash": [SDPBackend.FLASH_ATTENTION],
}


class SdpaAttention:
    """``torch.nn.functional.scaled_dot_product_attention``, one document at a time where rows are packed.

    Chunks are documents to it. What it cannot do, a window that is shorter than the text or a soft-cap, is done in blocks of
    queries (``blocks``), and so are short documents where a CPU is faster that way (``short``); sinks are added to its kernel's
    result (``sinks``), or done in blocks. On a GPU in half precision packed rows, windows and sinks go to the variable-length flash
    kernel in one call, soft-caps to FlexAttention (``flex``).
    """

    def __init__(self, kernel: str = "auto") -> None:
        if kernel != "auto" and kernel not in BACKENDS:
            raise UsageError(f"no attention kernel named {kernel!r}; known are auto, {', '.join(BACKENDS)}")
        self.kernel = kernel

    def __repr__(self) -> str:
        return f"sdpa ({self.kernel})"

    @exclude_from_compile
    def __call__(
        self, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKW: Tensor, context: BlockContext, **options: Unpack[AttentionOptions]
    ) -> Tensor:
        form = Form.read(options, q_BTNH, k_BSKH, v_BSKW)
        with self._kernels():
            if context.cache is not None:
                return self._one(q_BTNH, k_BSKH, v_BSKW, form, context)
            lengths = context.document_lengths or document_lengths(context.document_ids_BT)
            if form.chunk is not None:
                lengths, form = _cut_into_chunks(lengths, form.chunk), form._replace(chunk=None)
            if self._has_flash(q_BTNH) and not _is_plain(lengths, form):
                out_BTNW = varlen(q_BTNH, k_BSKH, v_BSKW, lengths, form, context.shared)
                if out_BTNW is None and (form.softcap is not None or form.sinks_N is not None):
                    out_BTNW = flexible_attention(q_BTNH, k_BSKH, v_BSKW, lengths, form, context.shared)
                if out_BTNW is not None:
                    return out_BTNW
            if all(row == lengths[0] for row in lengths):
                return self._row(q_BTNH, k_BSKH, v_BSKW, lengths[0], form)
            rows = zip(*(torch.split(x, 1) for x in (q_BTNH, k_BSKH, v_BSKW)), lengths, strict=True)
            return torch.cat([self._row(q, k, v, row, form) for q, k, v, row in rows])

    def _kernels(self) -> AbstractContextManager[object]:
        return nullcontext() if self.kernel == "auto" else sdpa_kernel(BACKENDS[self.kernel])

    def _has_flash(self, q_BTNH: Tensor) -> bool:
        return self.kernel in ("auto", "flash") and q_BTNH.is_cuda and q_BTNH.dtype in (torch.bfloat16, torch.float16)

    def _row(self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKW: Tensor, lengths: tuple[int, ...], form: Form) -> Tensor:
        """Attend in rows whose documents have the same lengths, one document at a time."""
        if len(lengths) == 1:
            return self._one(q_BTNH, k_BTKH, v_BTKW, form)
        documents = zip(*(torch.split(x, list(lengths), 1) for x in (q_BTNH, k_BTKH, v_BTKW)), strict=True)
        return torch.cat([self._one(q, k, v, form) for q, k, v in documents], 1)

    def _one(
        self, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKW: Tensor, form: Form, context: BlockContext | None = None
    ) -> Tensor:
        """Attend in rows of one document each. With a ``context``, whose cache may name padding, the T queries are the last of S."""
        padding_B = None if context is None or context.cache is None else context.cache.padding_B
        if form.chunk is not None and padding_B is None:
            k_BSKH, v_BSKW, form = _keep_chunk(q_BTNH, k_BSKH, v_BSKW, form, form.chunk)
        length, seen = q_BTNH.shape[1], k_BSKH.shape[1]
        if form.needs_blocks(seen) or (form.sinks_N is not None and not self._has_lse(q_BTNH)):
            if self.kernel not in ("auto", "math"):
                raise UsageError(
                    f"attention kernel {self.kernel!r} has no window or chunk shorter than the text, no soft-cap and no"
                    " sinks here, and this model has; set --train.attention auto"
                )
            return blockwise(q_BTNH, k_BSKH, v_BSKW, form, padding_B)
        if context is None and self.kernel == "auto" and form.sinks_N is None and is_faster_in_blocks(q_BTNH, k_BSKH):
            return attend_in_blocks(q_BTNH, k_BSKH, v_BSKW, form.scale)
        mask = None if context is None else _padding_mask(context, seen)
        if mask is None and 1 < length < seen:  # a cache that is filled in pieces: generation, no path that trains
            mask = torch.ones(length, seen, dtype=torch.bool, device=q_BTNH.device).tril(seen - length)
        return self.attend_whole(q_BTNH, k_BSKH, v_BSKW, form, mask)

    def attend_whole(self, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKW: Tensor, form: Form, mask: Tensor | None) -> Tensor:
        """Attend by one kernel to all that the mask shows, or without one causally; of the form, its scale and sinks count."""
        length, (width, scale) = q_BTNH.shape[1], (v_BSKW.shape[3], form.scale)
        has_one_width = self.kernel == "flash" or form.sinks_N is not None or (self.kernel == "auto" and length > 1)
        if q_BTNH.shape[3] != width and has_one_width:  # all kernels but those that hold all scores
            scale = q_BTNH.shape[3] ** -0.5 if scale is None else scale
            q_BTNH, k_BSKH, v_BSKW = pad_widths(q_BTNH, k_BSKH, v_BSKW)
        folds = length == 1  # heads with the same keys are queries of one head then, for which these are read once
        q_BNTH = q_BTNH.reshape(len(q_BTNH), k_BSKH.shape[2], -1, q_BTNH.shape[3]) if folds else q_BTNH.transpose(1, 2)
        k_BKSH, v_BKSW = k_BSKH.transpose(1, 2), v_BSKW.transpose(1, 2)
        is_causal = mask is None and length > 1
        if form.sinks_N is not None:
            sinks = form.sinks_N.view(k_BSKH.shape[2], -1) if folds else form.sinks_N[:, None]
            kernel = CpuFlash(mask=mask, is_causal=is_causal, scale=scale)
            out_BNTW = attend_with_sinks(q_BNTH, k_BKSH, v_BKSW, sinks, kernel)
        else:
            gqa = q_BNTH.shape[1] != k_BKSH.shape[1]
            out_BNTW = F.scaled_dot_product_attention(
                q_BNTH, k_BKSH, v_BKSW, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=gqa
            )
        out_BTNW = out_BNTW.reshape(*q_BTNH.shape[:3], -1) if folds else out_BNTW.transpose(1, 2)
        return out_BTNW.narrow(-1, 0, width)

    def _has_lse(self, q_BTNH: Tensor) -> bool:
        return self.kernel in ("auto", "flash") and not q_BTNH.is_cuda and CpuFlash.is_installed()


def _cut_into_chunks(lengths: DocumentLengths, chunk: int) -> DocumentLengths:
    """Cut documents into chunks that do not see each other: whole ones, and what is left of each document."""
    return tuple(tuple(min(chunk, size - begin) for size in row for begin in range(0, size, chunk)) for row in lengths)


def _keep_chunk(q_BTNH: Tensor, k_BSKH: Tensor, v_BSKW: Tensor, form: Form, chunk: int) -> tuple[Tensor, Tensor, Form]:
    """Leave out the keys in front of the chunk in which all queries are; blocks do what is in several."""
    seen = k_BSKH.shape[1]
    first = (seen - q_BTNH.shape[1]) // chunk * chunk
    if seen > first + chunk:
        return k_BSKH, v_BSKW, form
    return k_BSKH[:, first:], v_BSKW[:, first:], form._replace(chunk=None)


def _is_plain(lengths: DocumentLengths, form: Form) -> bool:
    """Return whether attention is causal and nothing more: one document a row, and all of it in the window."""
    fits = form.window is None or max(row[0] for row in lengths) <= form.window
    return all(len(row) == 1 for row in lengths) and fits and form.softcap is None and form.sinks_N is None


def _padding_mask(context: BlockContext, seen: int) -> Tensor | None:
    """Return (B, 1, T, S), true where a query may look; ``None`` without padding. Computed once a forward; generation only."""
    cache = context.cache
    if cache is None or cache.padding_B is None:
        return None
    if "padding_mask" not in context.shared:
        keys_S = torch.arange(seen, device=cache.padding_B.device)
        queries_T1 = keys_S[seen - context.positions_BT.shape[1] :, None]
        real_B1S = (keys_S >= cache.padding_B[:, None])[:, None]
        # padding sees itself: where a kernel's softmax over nothing is no number, zero times it would spoil the row
        context.shared["padding_mask"] = ((keys_S <= queries_T1) & real_B1S | (keys_S == queries_T1))[:, None]
    mask: Tensor = context.shared["padding_mask"]
    return mask
