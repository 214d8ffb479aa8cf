"""Attention with a soft-cap or sinks on a GPU, by FlexAttention (https://arxiv.org/abs/2412.05496): it has kernels for any formula.

Shapes: B rows, T tokens, N query heads, K key/value heads, H head width, W width of the values.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from mt_core.nn.batch import DocumentLengths
from mt_core.nn.blocks import Form


def flexible_attention(
    q_BTNH: Tensor, k_BTKH: Tensor, v_BTKW: Tensor, lengths: DocumentLengths, form: Form, shared: dict[Any, Any]
) -> Tensor:
    """Attend over all documents of all rows in one call, in tiles: those that no query sees are left out, found once for all blocks with
    the same window (``shared``)."""
    from torch.nn.attention.flex_attention import AuxRequest

    # A tensor: with sizes that vary, torch's compiler takes a number for one that varies too, which this operator cannot hold.
    cap = None if form.softcap is None else torch.full((), form.softcap, device=q_BTNH.device)
    if (key := ("document tiles", lengths, form.window)) not in shared:
        shared[key] = _visible_tiles(lengths, form.window, q_BTNH.device)
    tiles = shared[key]

    def cap_score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert cap is not None, "it is called where there is a soft-cap"
        return cap * torch.tanh(score / cap)

    q_BNTH, k_BKTH, v_BKTW = (x.transpose(1, 2) for x in (q_BTNH, k_BTKH, v_BTKW))
    options: dict[str, Any] = {"block_mask": tiles, "scale": form.scale, "enable_gqa": True}
    if cap is not None:
        options["score_mod"] = cap_score
    if form.sinks_N is None:
        out_BNTW: Tensor = _kernel()(q_BNTH, k_BKTH, v_BKTW, **options)
        return out_BNTW.transpose(1, 2)
    out_BNTW, sums = _kernel()(q_BNTH, k_BKTH, v_BKTW, return_aux=AuxRequest(lse=True), **options)
    share_BNT = torch.sigmoid(sums.lse - form.sinks_N[:, None])  # the log-sum-exp has a gradient: so have the sinks
    return (out_BNTW * share_BNT[..., None].to(out_BNTW.dtype)).transpose(1, 2)


def _visible_tiles(lengths: DocumentLengths, window: int | None, device: torch.device) -> Any:
    """Return the tiles of scores in which a query sees a key: of its own document, before it, and in its window."""
    from torch.nn.attention.flex_attention import create_block_mask

    ids = [[number for number, size in enumerate(row) for _ in range(size)] for row in lengths]
    documents_BT = torch.tensor(ids).to(device, non_blocking=True)
    rows, length = documents_BT.shape
    reach = window or length

    def is_visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (k > q - reach) & (documents_BT[b, q] == documents_BT[b, k])

    return create_block_mask(is_visible, rows, None, length, length, device=device, _compile=True)


@cache
def _kernel() -> Any:
    """Compiled once: uncompiled, FlexAttention would hold all scores."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)
