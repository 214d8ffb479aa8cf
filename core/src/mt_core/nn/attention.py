"""Causal attention over packed rows, by torch's own kernels, never with a [T, T] mask.

Shapes: B rows, T query tokens, S key tokens (T plus what a cache holds), N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mt_core.errors import UsageError
from mt_core.nn.batch import document_lengths

if TYPE_CHECKING:
    from mt_core.nn.model import BlockContext

BACKENDS: dict[str, list[SDPBackend]] = {
    "math": [SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "flash": [SDPBackend.FLASH_ATTENTION],
}


class AttentionFn(Protocol):
    """Attention as a block calls it; the engine passes it in through ``BlockContext``."""

    def __call__(
        self, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, context: BlockContext, *, scale: float | None = None
    ) -> Tensor:
        """(B, T, N, H), (B, S, K, H), (B, S, K, H) -> (B, T, N, H).

        A token sees the tokens before it in its own document, and itself; never the padding that ``context.cache``
        names. N is a multiple of K. ``scale`` defaults to 1/sqrt(H).
        """
        ...


class SdpaAttention:
    """``torch.nn.functional.scaled_dot_product_attention``, one document at a time where rows are packed.

    On a GPU in half precision packed rows go to the variable-length flash kernel in one call.
    """

    def __init__(self, kernel: str = "auto") -> None:
        if kernel != "auto" and kernel not in BACKENDS:
            raise UsageError(f"no attention kernel named {kernel!r}; known are auto, {', '.join(BACKENDS)}")
        self.kernel = kernel

    def __repr__(self) -> str:
        return f"sdpa ({self.kernel})"

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, context: BlockContext, *, scale: float | None = None
    ) -> Tensor:
        with self._kernels():
            if context.cache is not None:
                return self._one(q_BTNH, k_BSKH, v_BSKH, scale, _padding_mask(context, k_BSKH.shape[1]))
            lengths = context.document_lengths or document_lengths(context.document_ids_BT)
            if all(len(row) == 1 for row in lengths):
                return self._one(q_BTNH, k_BSKH, v_BSKH, scale)
            if self.kernel in ("auto", "flash") and q_BTNH.is_cuda and q_BTNH.dtype in (torch.bfloat16, torch.float16):
                return _varlen(q_BTNH, k_BSKH, v_BSKH, lengths, scale)
            rows = [
                self._row(q_BTNH[b : b + 1], k_BSKH[b : b + 1], v_BSKH[b : b + 1], row, scale)
                for b, row in enumerate(lengths)
            ]
            return torch.cat(rows)

    def _kernels(self) -> AbstractContextManager[object]:
        return nullcontext() if self.kernel == "auto" else sdpa_kernel(BACKENDS[self.kernel])

    def _row(
        self, q_1TNH: Tensor, k_1TKH: Tensor, v_1TKH: Tensor, lengths: tuple[int, ...], scale: float | None
    ) -> Tensor:
        sizes = list(lengths)
        documents = zip(*(torch.split(x, sizes, 1) for x in (q_1TNH, k_1TKH, v_1TKH)), strict=True)
        return torch.cat([self._one(q, k, v, scale) for q, k, v in documents], 1)

    def _one(
        self, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, scale: float | None, mask: Tensor | None = None
    ) -> Tensor:
        """Rows of one document each. With a cache, the T queries are the last of the S tokens."""
        q_BNTH, k_BKSH, v_BKSH = q_BTNH.transpose(1, 2), k_BSKH.transpose(1, 2), v_BSKH.transpose(1, 2)
        length, seen = q_BNTH.shape[2], k_BKSH.shape[2]
        if (
            mask is None and 1 < length < seen
        ):  # a cache that is filled in pieces: generation only, so this mask is on no path that trains
            mask = torch.ones(length, seen, dtype=torch.bool, device=q_BTNH.device).tril(seen - length)
        out_BNTH = F.scaled_dot_product_attention(
            q_BNTH,
            k_BKSH,
            v_BKSH,
            attn_mask=mask,
            is_causal=mask is None and length == seen and length > 1,
            scale=scale,
            enable_gqa=q_BNTH.shape[1] != k_BKSH.shape[1],
        )
        return out_BNTH.transpose(1, 2)


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


def _varlen(
    q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, lengths: tuple[tuple[int, ...], ...], scale: float | None
) -> Tensor:
    """All documents of all rows in one call of the variable-length flash kernel."""
    from torch.nn.attention.varlen import varlen_attn

    flat = [length for row in lengths for length in row]
    bounds = (
        torch.tensor([0, *flat], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(q_BTNH.device, non_blocking=True)
    )
    longest = max(flat)
    out = varlen_attn(
        q_BTNH.flatten(0, 1),
        k_BTKH.flatten(0, 1),
        v_BTKH.flatten(0, 1),
        bounds,
        bounds,
        longest,
        longest,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=q_BTNH.shape[2] != k_BTKH.shape[2],
    )
    assert isinstance(out, Tensor), "without return_aux the kernel returns one tensor"
    return out.view_as(q_BTNH)
