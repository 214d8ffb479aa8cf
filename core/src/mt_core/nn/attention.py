"""Causal attention over packed rows, by torch's own kernels or block by block, never with a [T, T] mask.

Shapes: B rows, T query tokens, S key tokens (T plus what a cache holds), N query heads, K key/value heads, H head width.
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
from mt_core.nn.blocks import Form, blockwise
from mt_core.nn.compilation import exclude_from_compile
from mt_core.nn.context import AttentionOptions, BlockContext
from mt_core.nn.flex import softcapped_attention
from mt_core.nn.varlen import varlen

BACKENDS: dict[str, list[SDPBackend]] = {
    "math": [SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "flash": [SDPBackend.FLASH_ATTENTION],
}


class SdpaAttention:
    """``torch.nn.functional.scaled_dot_product_attention``, one document at a time where rows are packed.

    What it cannot do, a window that is shorter than the text or a soft-cap, is done in blocks of queries (``blocks``).
    On a GPU in half precision packed rows and windows go to the variable-length flash kernel in one call, soft-caps to
    FlexAttention (``flex``).
    """

    def __init__(self, kernel: str = "auto") -> None:
        if kernel != "auto" and kernel not in BACKENDS:
            raise UsageError(f"no attention kernel named {kernel!r}; known are auto, {', '.join(BACKENDS)}")
        self.kernel = kernel

    def __repr__(self) -> str:
        return f"sdpa ({self.kernel})"

    @exclude_from_compile
    def __call__(
        self,
        q_BTNH: Tensor,
        k_BSKH: Tensor,
        v_BSKH: Tensor,
        context: BlockContext,
        **options: Unpack[AttentionOptions],
    ) -> Tensor:
        form = Form(**options)
        with self._kernels():
            if context.cache is not None:
                return self._one(q_BTNH, k_BSKH, v_BSKH, form, context)
            lengths = context.document_lengths or document_lengths(context.document_ids_BT)
            if self._has_flash(q_BTNH) and (form.softcap is not None or not _is_plain(lengths, form.window)):
                whole = softcapped_attention if form.softcap is not None else varlen
                if (out_BTNH := whole(q_BTNH, k_BSKH, v_BSKH, lengths, form)) is not None:
                    return out_BTNH
            if all(len(row) == 1 for row in lengths):
                return self._one(q_BTNH, k_BSKH, v_BSKH, form)
            rows = [
                self._row(q_BTNH[b : b + 1], k_BSKH[b : b + 1], v_BSKH[b : b + 1], row, form)
                for b, row in enumerate(lengths)
            ]
            return torch.cat(rows)

    def _kernels(self) -> AbstractContextManager[object]:
        return nullcontext() if self.kernel == "auto" else sdpa_kernel(BACKENDS[self.kernel])

    def _has_flash(self, q_BTNH: Tensor) -> bool:
        return self.kernel in ("auto", "flash") and q_BTNH.is_cuda and q_BTNH.dtype in (torch.bfloat16, torch.float16)

    def _row(self, q_1TNH: Tensor, k_1TKH: Tensor, v_1TKH: Tensor, lengths: tuple[int, ...], form: Form) -> Tensor:
        sizes = list(lengths)
        documents = zip(*(torch.split(x, sizes, 1) for x in (q_1TNH, k_1TKH, v_1TKH)), strict=True)
        return torch.cat([self._one(q, k, v, form) for q, k, v in documents], 1)

    def _one(
        self, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, form: Form, context: BlockContext | None = None
    ) -> Tensor:
        """Rows of one document each. With a ``context``, whose cache may name padding, the T queries are the last of S."""
        length, seen = q_BTNH.shape[1], k_BSKH.shape[1]
        if form.softcap is not None or (form.window is not None and form.window < seen):
            if self.kernel not in ("auto", "math"):
                raise UsageError(
                    f"attention kernel {self.kernel!r} has no window shorter than the text and no soft-cap here, and this"
                    " model has; set --train.attention auto"
                )
            padding_B = None if context is None or context.cache is None else context.cache.padding_B
            return blockwise(q_BTNH, k_BSKH, v_BSKH, form, padding_B)
        mask = None if context is None else _padding_mask(context, seen)
        if mask is None and 1 < length < seen:  # a cache that is filled in pieces: generation, no path that trains
            mask = torch.ones(length, seen, dtype=torch.bool, device=q_BTNH.device).tril(seen - length)
        folds = length == 1  # heads with the same keys are queries of one head then, for which these are read once
        q_BNTH = q_BTNH.reshape(len(q_BTNH), k_BSKH.shape[2], -1, q_BTNH.shape[3]) if folds else q_BTNH.transpose(1, 2)
        out_BNTH = F.scaled_dot_product_attention(
            q_BNTH,
            k_BSKH.transpose(1, 2),
            v_BSKH.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None and length == seen and length > 1,
            scale=form.scale,
            enable_gqa=q_BNTH.shape[1] != k_BSKH.shape[2],
        )
        return out_BNTH.reshape(*q_BTNH.shape[:3], -1) if folds else out_BNTH.transpose(1, 2)


def _is_plain(lengths: DocumentLengths, window: int | None) -> bool:
    """One document a row, and all of it in the window."""
    return all(len(row) == 1 for row in lengths) and (window is None or max(row[0] for row in lengths) <= window)


def _padding_mask(context: BlockContext, seen: int) -> Tensor | None:
    """(B, 1, T, S), true where a query may look; ``None`` without padding. Computed once a forward; generation only."""
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
