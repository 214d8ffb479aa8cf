"""Masters of our own for bf16 at ZeRO 1, in 16 bytes a parameter on one rank: bf16 weight and gradient, fp32 master, two moments.

DeepSpeed's optimizer for bf16 keeps fp32 sums of all gradients beside them (20 bytes), in flat buffers that everything is copied into.
Here gradients become fp32 bucket by bucket, as they are added to the masters, and are freed there. Sums in fp32 are kept where a step
has several micro-batches, whose gradients go into them one by one in the backward.

W ranks share the parameters. Those of a group stand one behind the other in buckets, each filled up to W equal pieces, and rank r keeps
masters and moments of the r-th piece of each. Gradients are summed over ranks in fp32 and divided by W; rounded masters are gathered.
The order of the arithmetic is DeepSpeed's, so that both give the same bits, but for the norm: it is summed in fp64, as at other stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_train.engine.norms import squared_norm
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
        return self.collect()[first:end]

    def clear(self) -> None:
        """Forget all gradients."""
        self.gradient = self._sums = self.master.grad = None
        for each in self.parameters:
            each.grad = None

    def publish(self) -> None:
        """Bring the masters, rounded, to the weights of all ranks. Collective."""
        whole = self.master.detach()
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


class MasterWeights:
    """Masters with the optimizer that updates them, under the names by which DeepSpeed's optimizers are asked."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, clip_norm: float | None, rank: int, ranks: int) -> None:
        self.optimizer = optimizer
        self.clip_grad = clip_norm or 0.0
        self.norm = torch.zeros(())
        self.buckets: list[Bucket] = []
        for group in optimizer.param_groups:
            made = [Bucket(members, rank=rank, ranks=ranks) for members in cut(group["params"])]
            group["params"] = [bucket.master for bucket in made]
            self.buckets += made
        self._bucket_of = {id(each): bucket for bucket in self.buckets for each in bucket.parameters}
        self._link()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups."""
        return self.optimizer.param_groups

    def gradient_of(self, parameter: nn.Parameter) -> Tensor:
        """Return this rank's part of a gradient in fp32, live, between the last backward and the update."""
        return self._bucket_of[id(parameter)].piece(parameter)

    @torch.no_grad()
    def step(self) -> bool:
        """Clip, update and publish, bucket by bucket. False, and nothing changed, where the gradient is not finite. Collective."""
        self.norm = self._gradient_norm()
        norm = float(self.norm)
        if not math.isfinite(norm):
            self.clear()
            return False
        clips = 0 < self.clip_grad < norm + 1e-6
        for bucket in self.buckets:
            bucket.master.grad = bucket.collect()
            if clips:
                bucket.master.grad.mul_(self.clip_grad / (self.norm + 1e-6))
            self.optimizer.step()
            bucket.clear()
            bucket.publish()
        return True

    def clear(self) -> None:
        """Forget all gradients."""
        for bucket in self.buckets:
            bucket.clear()

    @torch.no_grad()
    def update_lp_params(self) -> None:
        """Bring changed masters to the weights of all ranks. Collective."""
        for bucket in self.buckets:
            bucket.publish()

    def _gradient_norm(self) -> Tensor:
        gradients = (gradient for bucket in self.buckets for gradient in bucket.gradients())
        total = squared_norm(gradients, self.buckets[0].master.device)
        return (all_reduce(total) if self.buckets[0].ranks > 1 else total).sqrt().float()

    # What reads and writes slices by name (fragments, access) follows DeepSpeed's links from a parameter to its piece and its state.

    def _link(self) -> None:
        from deepspeed.utils import link_hp_params

        for bucket in self.buckets:
            link_hp_params(
                lp_param_list=bucket.parameters,
                flat_hp_partition=bucket.master,
                gradient_dict={},
                offload_gradient_dict=None,
                use_offload=False,
                param_group_index=0,
                partition_start=bucket.start,
                partition_size=bucket.share,
                dp_group=None,
            )

    def _lazy_init_hp_params_optimizer_state(self) -> None:
        from deepspeed.utils import lazy_init_hp_params_optimizer_state

        for bucket in self.buckets:
            lazy_init_hp_params_optimizer_state(bucket.parameters, bucket.master, self.optimizer.state)


class Bf16Engine:
    """The part of DeepSpeed's engine that ``Engine`` uses, over a module in bf16 and its fp32 masters."""

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, *, clip_norm: float | None, rank: int, ranks: int
    ) -> None:
        self.module = module.bfloat16()
        self.train, self.eval = module.train, module.eval
        if ranks > 1:
            for parameter in module.parameters():
                dist.broadcast(parameter.detach(), 0)
        self.optimizer = MasterWeights(optimizer, clip_norm=clip_norm, rank=rank, ranks=ranks)
        self._last = self._applied = True
        self._adds_up = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._take_gradient(bucket, number))  # type: ignore[no-untyped-call]
            for bucket in self.optimizer.buckets
            for number, parameter in enumerate(bucket.parameters)
        ]

    def _take_gradient(self, bucket: Bucket, number: int) -> Any:
        @torch.no_grad()
        def take(parameter: Tensor) -> None:
            if self._adds_up:
                bucket.add_up(number)

        return take

    def __call__(self, *arguments: Any) -> Any:
        """Run the module forward."""
        return self.module(*arguments)

    def set_gradient_accumulation_boundary(self, last: bool) -> None:
        """Say whether the next micro-batch is the step's last: where one is not, gradients are added up in fp32."""
        self._last, self._adds_up = last, self._adds_up or not last

    def backward(self, loss: Tensor, *, scale_wrt_gas: bool) -> None:
        """Run the backward of one micro-batch; after the last one the ranks average."""
        assert not scale_wrt_gas, "the loss is scaled by its caller"
        loss.backward()  # type: ignore[no-untyped-call]
        if self._last:
            for bucket in self.optimizer.buckets:
                if bucket.gathers():
                    bucket.collect()

    def step(self) -> None:
        """Update after the last micro-batch; do nothing after others."""
        if self._last:
            self._applied, self._adds_up = self.optimizer.step(), False

    def was_step_applied(self) -> bool:
        """Return whether the last step's gradient was finite."""
        return self._applied

    def get_global_grad_norm(self) -> Tensor:
        """Return the norm of the last step's gradients, before they were clipped."""
        return self.optimizer.norm

    def destroy(self) -> None:
        """Let go of the module's parameters."""
        for hook in self._hooks:
            hook.remove()
        self.optimizer.clear()
        for bucket in self.optimizer.buckets:
            for parameter in bucket.parameters:
                parameter._hp_mapping = None  # type: ignore[attr-defined]


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
