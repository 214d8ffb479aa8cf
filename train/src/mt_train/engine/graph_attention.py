"""Attention inside the graph of a compiled block.

Shapes: B rows, T tokens, N query heads, K key/value heads, H head width, W width of the values.
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from mt_core.nn import BlockContext, SdpaAttention
from mt_core.nn.batch import document_lengths
from mt_core.nn.blocks import Form
from mt_core.nn.context import AttentionOptions
from mt_core.nn.varlen import Varlen, document_bounds, varlen_kernel
from mt_train.engine.document_attention import attend_documents

KEY = "documents of the graph"


class Documents(NamedTuple):
    """The documents of all rows: where they begin and end, on the device of the batch, and whether each row is one of them, in a run that
    does not pack. The first differs from batch to batch, and is a tensor; the second does not."""

    bounds: Tensor
    fill_rows: bool


class GraphAttention:
    """``SdpaAttention`` that a compiler traces: the block around it is one graph, whatever its rows hold.

    Outside of the graph stay, by a break: sinks; on a GPU soft-caps (FlexAttention is compiled by itself), chunks, and packed rows and
    windows in fp32, or where torch has no kernel for them; generation.
    """

    def __init__(self, outside: SdpaAttention, *, packs: bool) -> None:
        self.outside, self._packs = outside, packs
        kernel = varlen_kernel()
        self._varlen = None if kernel is None else Varlen(kernel)

    def __repr__(self) -> str:
        return f"{self.outside!r}, in the graph"

    def prepare(self, context: BlockContext) -> None:
        """Put the documents of a batch into its context, before the first block that is compiled."""
        if KEY in context.shared or context.cache is not None:
            return
        lengths = context.document_lengths or document_lengths(context.document_ids_BT.cpu())
        bounds = document_bounds(lengths).to(context.positions_BT.device, non_blocking=True)
        torch._dynamo.mark_dynamic(bounds, 0)  # how many there are is no part of the graph
        context.shared[KEY] = Documents(bounds, not self._packs and all(len(row) == 1 for row in lengths))

    def __call__(
        self,
        q_BTNH: Tensor,
        k_BSKH: Tensor,
        v_BSKW: Tensor,
        context: BlockContext,
        **options: Unpack[AttentionOptions],
    ) -> Tensor:
        """See ``AttentionFn``."""
        form = Form.read(options, q_BTNH, k_BSKH, v_BSKW)
        out_BTNW = None
        if KEY in context.shared and form.sinks_N is None:
            out_BTNW = self._attend(q_BTNH, k_BSKH, v_BSKW, form, context.shared[KEY])
        return self.outside(q_BTNH, k_BSKH, v_BSKW, context, **options) if out_BTNW is None else out_BTNW

    def _attend(
        self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKW: Tensor, form: Form, documents: Documents
    ) -> Tensor | None:
        """Attend by what a graph can hold; ``None`` where there is nothing."""
        length, bounds = q_BTNH.shape[1], documents.bounds
        if q_BTNH.device.type == "cpu":
            return attend_documents(q_BTNH, k_BTKH, v_BTKW, bounds, form)
        if form.softcap is not None or form.chunk is not None:
            return None
        if documents.fill_rows and (form.window is None or form.window >= length):
            return self.outside.attend_whole(q_BTNH, k_BTKH, v_BTKW, form, None)
        if self._varlen is None or q_BTNH.dtype not in (torch.bfloat16, torch.float16):
            return None
        return self._varlen.attend(q_BTNH, k_BTKH, v_BTKW, bounds, length, form)
