"""Sequence parallelism (Ulysses, https://arxiv.org/abs/2309.14509): ranks share the rows, each has a part of their tokens.

To DeepSpeed these are plain data-parallel ranks: gradients are averaged over all of them, and the loss is scaled for that
(``Engine``). Its own ways of being told of sequence ranks give wrong gradients at one stage or another. Only attention has
to see whole rows, and for that each rank has some of the heads.

Shapes: B rows, T tokens of a row, S ranks that share it, N query heads, K key/value heads, H head width, W width of
the values, C channels of a token that a rank sends to another.
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
    """Attention over whole rows for ranks that hold parts of them: heads are exchanged for tokens and back.

    That is one all-to-all for queries, keys and values together, and one for what attention gives; as many in the backward. With
    fewer key/value heads than ranks, heads are repeated until each rank has one.
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
        """T/S tokens of all heads in, and out again; ``context.document_lengths`` are those of the whole rows.

        Sinks go with their heads: each rank has the gradient of its own, over whole rows, and zero for the others.
        """
        if (sinks_N := options.get("sinks_N")) is not None:
            options["sinks_N"] = sinks_N.chunk(self._size)[dist.get_rank(self._group)]
        times = math.lcm(k_BSKH.shape[2], self._size) // k_BSKH.shape[2]
        if times > 1:
            k_BSKH, v_BSKW = (x.repeat_interleave(times, 2) for x in (k_BSKH, v_BSKW))
        q_BTnH, k_BTkH, v_BTkW = self._gather_tokens(q_BTNH, k_BSKH, v_BSKW)
        return self._scatter_tokens(self.whole(q_BTnH, k_BTkH, v_BTkW, context, **options))

    def _gather_tokens(self, *parts_BtNH: Tensor) -> list[Tensor]:
        """(B, T/S, N, H) of each -> (B, T, N/S, H) of each, in one exchange: the own heads of each lie side by side in what a rank gets."""
        by_rank = [_unflatten(part, 2, self._size) for part in parts_BtNH]  # (B, T/S, S, N/S, H)
        sent_SBtC = torch.cat([each.flatten(3).movedim(2, 0) for each in by_rank], -1)
        whole_BTC = self._exchange(sent_SBtC).movedim(0, 1).flatten(1, 2)
        shapes = [each.shape[3:] for each in by_rank]
        found = torch.split(whole_BTC, [shape.numel() for shape in shapes], 2)
        return [_unflatten(each_BTC, 2, shape[0]) for each_BTC, shape in zip(found, shapes, strict=True)]

    def _scatter_tokens(self, out_BTnW: Tensor) -> Tensor:
        """(B, T, N/S, W) -> (B, T/S, N, W)."""
        sent_SBtC = _unflatten(out_BTnW.flatten(2), 1, self._size).movedim(1, 0)
        return _unflatten(self._exchange(sent_SBtC).movedim(0, 2).flatten(2), 2, self._size * out_BTnW.shape[2])

    def _exchange(self, sent_SBtC: Tensor) -> Tensor:
        return _AllToAll.apply(sent_SBtC, self._group)  # type: ignore[no-untyped-call, no-any-return]

    @exclude_from_compile
    def over_row(self, value: Tensor) -> Tensor:
        """Added up over the ranks that share the rows; see ``BlockContext``. Its gradient is passed on as it is."""
        whole: Tensor = _Sum.apply(value, self._group)  # type: ignore[no-untyped-call]
        return whole


def _unflatten(value: Tensor, dim: int, count: int) -> Tensor:
    """Take one dimension as ``count`` equal runs."""
    shape = value.shape
    return value.reshape(*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :])


class _AllToAll(torch.autograd.Function):
    """(S, …) -> (S, …): piece r goes to rank r, and piece r is what came from it. Its gradient goes the same way back."""

    @staticmethod
    def forward(ctx: Any, sent: Tensor, group: Any) -> Tensor:
        ctx.group = group
        sent = sent.contiguous()
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=group)
        return got

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _AllToAll.apply(gradient, ctx.group), None  # type: ignore[no-untyped-call]


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
