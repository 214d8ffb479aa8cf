"""Sequence parallelism (Ulysses, https://arxiv.org/abs/2309.14509): ranks share the rows, each has a part of their tokens.

To DeepSpeed these are plain data-parallel ranks: gradients are averaged over all of them, and the loss is scaled for that
(``Engine``). Its own ways of being told of sequence ranks give wrong gradients at one stage or another. Only attention has
to see whole rows, and for that each rank has some of the heads.

Shapes: B rows, T tokens of a row, S ranks that share it, N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from mt_core.nn.compilation import exclude_from_compile
from mt_train.engine.processes import Process

if TYPE_CHECKING:
    from mt_core.nn import AttentionFn, BlockContext
    from mt_core.nn.context import AttentionOptions


def sequence_group(process: Process, size: int) -> Any:
    """The group of this rank: neighbours, which on a machine with several devices are the fast links. Collective within it.

    Each rank makes its own group alone: with all groups on all ranks 16,384 of them would make 2,048 each, one after the other.
    """
    start = process.rank // size * size
    return dist.new_group(list(range(start, start + size)), use_local_synchronization=True)


class UlyssesAttention:
    """Attention over whole rows for ranks that hold parts of them, by DeepSpeed's all-to-all.

    With fewer key/value heads than ranks, heads are repeated until each rank has one.
    """

    def __init__(self, whole: AttentionFn, group: Any, size: int) -> None:
        self.whole = whole
        self._group = group
        self._size = size

    def __repr__(self) -> str:
        return f"{self.whole!r}, rows shared by {self._size} ranks"

    @exclude_from_compile
    def __call__(
        self,
        q_BTNH: Tensor,
        k_BSKH: Tensor,
        v_BSKW: Tensor,
        context: BlockContext,
        **options: Unpack[AttentionOptions],
    ) -> Tensor:
        """T/S tokens of all heads in, and out again; ``context.document_ids_BT`` are those of the whole rows.

        Sinks go with their heads: each rank has the gradient of its own, over whole rows, and zero for the others.
        """
        from deepspeed.sequence.layer import DistributedAttention

        if (sinks_N := options.get("sinks_N")) is not None:
            options["sinks_N"] = sinks_N.chunk(self._size)[dist.get_rank(self._group)]

        def core(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any) -> Tensor:
            return self.whole(q, k, v, context, **options)

        times = math.lcm(k_BSKH.shape[2], self._size) // k_BSKH.shape[2]
        if times > 1:
            k_BSKH, v_BSKW = (x.repeat_interleave(times, 2) for x in (k_BSKH, v_BSKW))
        exchange = DistributedAttention(core, self._group, scatter_idx=2, gather_idx=1)
        out: Tensor = exchange(q_BTNH.contiguous(), k_BSKH.contiguous(), v_BSKW.contiguous(), batch_dim_idx=0)
        return out

    @exclude_from_compile
    def over_row(self, value: Tensor) -> Tensor:
        """Added up over the ranks that share the rows; see ``BlockContext``. Its gradient is passed on as it is."""
        whole: Tensor = _Sum.apply(value, self._group)  # type: ignore[no-untyped-call]
        return whole


class _Sum(torch.autograd.Function):
    """A sum over ranks, each of which computes the same from it: the gradient of a rank's own share is that of the sum."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        whole = value.clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
