"""Buckets of parameters with their fp32 masters and gradients, for ``masters``: cut into pieces among ranks, or whole on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_train.engine.processes import all_reduce
from mt_train.engine.settings import BUCKET_NUMBERS


class Bucket:
    """Some parameters of a group, and this rank's piece of their masters and gradients."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, rank: int, ranks: int) -> None:
        self.parameters, self.ranks = list(parameters), ranks
        self.numbers = sum(each.numel() for each in parameters)
        self.share = -(-self.numbers // ranks)
        self.start = rank * self.share
        self.gradient: Tensor | None = None
        """fp32, averaged over the ranks, from the last backward on where it is kept at all."""
        self._sums: Tensor | None = None
        whole = self._flat(torch.float32)
        torch._foreach_copy_(self._views(whole), [each.detach().view(-1) for each in parameters])
        self.master = nn.Parameter(whole if ranks == 1 else self._own(whole).clone())

    def add_up(self, number: int) -> None:
        """Add the gradient of a parameter to fp32 sums, and free it."""
        parameter = self.parameters[number]
        assert parameter.grad is not None, "torch calls this when there is a gradient"
        if self._sums is None:
            self._sums = self._flat(torch.float32)
        self._views(self._sums)[number].add_(parameter.grad.reshape(-1))
        parameter.grad = None

    def collect(self) -> Tensor:
        """Return this rank's piece of the gradient in fp32, averaged over the ranks, and free what it was made of. Collective."""
        if self.gradient is None:
            whole = self._flat_gradient() if self._sums is None else self._sums
            self._sums = None
            self.gradient = whole if self.ranks == 1 else self._average(whole)
        return self.gradient

    def gathers(self) -> bool:
        """Return whether gradients are to be collected at the end of the last backward, before anybody asks for them."""
        return self.ranks > 1 or self._sums is not None

    def gradients(self) -> Iterator[Tensor]:
        """Yield what there is of gradients on this rank, flat: the piece in fp32, or bf16 ones as they came."""
        if self.gradient is not None:
            yield self.gradient
            return
        yield from (each.grad.reshape(-1) for each in self.parameters if each.grad is not None)

    def piece(self, parameter: nn.Parameter) -> Tensor:
        """Return the part of the collected gradient that is this parameter's, live."""
        number = next(place for place, each in enumerate(self.parameters) if each is parameter)
        begin = sum(each.numel() for each in self.parameters[:number]) - self.start
        first, end = max(0, begin), min(self.share, begin + parameter.numel())
        return self.collect().view(-1)[first:end]

    def clear(self) -> None:
        """Forget all gradients."""
        self.gradient = self._sums = self.master.grad = None
        for each in self.parameters:
            each.grad = None

    def publish(self) -> None:
        """Bring the masters, rounded, to the weights of all ranks. Collective."""
        whole = self.master.detach().view(-1)
        if self.ranks > 1:
            whole = torch.empty(self.share * self.ranks, dtype=self.parameters[0].dtype, device=whole.device)
            own = self._own(whole)
            own.copy_(self.master)
            dist.all_gather_into_tensor(whole, own)
        torch._foreach_copy_([each.detach().view(-1) for each in self.parameters], self._views(whole))

    def _flat_gradient(self) -> Tensor:
        """Make a flat fp32 copy of the gradients, which are freed one by one; what no loss has reached has zeros."""
        whole = self._flat(torch.float32)
        for view, parameter in zip(self._views(whole), self.parameters, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad.reshape(-1))
                parameter.grad = None
        return whole

    def _average(self, whole: Tensor) -> Tensor:
        piece = torch.empty(self.share, device=whole.device)
        dist.reduce_scatter_tensor(piece, whole)
        return piece.mul_(1.0 / self.ranks)

    def _flat(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.share * self.ranks, dtype=dtype, device=self.parameters[0].device)

    def _own(self, whole: Tensor) -> Tensor:
        return whole[self.start : self.start + self.share]

    def _views(self, whole: Tensor) -> list[Tensor]:
        sizes = [each.numel() for each in self.parameters]
        return list(torch.split(whole[: self.numbers], sizes))


class WholeParameter(Bucket):
    """One parameter, whose master and gradient are whole on every rank."""

    def __init__(self, parameter: nn.Parameter, *, ranks: int) -> None:
        super().__init__([parameter], rank=0, ranks=1)
        self.master = nn.Parameter(self.master.detach().view_as(parameter))
        self._sharing_ranks = ranks

    def collect(self) -> Tensor:
        """Return the gradient in fp32 and the parameter's shape, averaged over the ranks. Collective."""
        if self.gradient is None:
            self.gradient = super().collect().view_as(self.master)
            if self._sharing_ranks > 1:
                all_reduce(self.gradient).mul_(1.0 / self._sharing_ranks)
        return self.gradient

    def gathers(self) -> bool:
        """Return whether gradients are to be collected at the end of the last backward, before anybody asks for them."""
        return self._sharing_ranks > 1 or super().gathers()


def cut(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Divide a group into buckets: as many in a row as have at most ``BUCKET_NUMBERS``, a larger one alone."""
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        if not buckets or parameter.numel() > room:
            buckets.append([])
            room = max(BUCKET_NUMBERS, parameter.numel())
        buckets[-1].append(parameter)
        room -= parameter.numel()
    return buckets
