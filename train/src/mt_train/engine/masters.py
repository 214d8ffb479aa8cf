"""Masters of our own for bf16 at ZeRO 0 and 1, in 16 bytes a parameter on one rank: bf16 weight and gradient, fp32 master, two moments.

DeepSpeed's optimizer for bf16 keeps fp32 sums of all gradients beside them (20 bytes), in flat buffers that everything is copied into.
Here gradients become fp32 bucket by bucket, as they are added to the masters, and are freed there. Sums in fp32 are kept where a step
has several micro-batches, whose gradients go into them one by one in the backward.

W ranks share the parameters. Those of a group stand one behind the other in buckets, each filled up to W equal pieces, and rank r keeps
masters and moments of the r-th piece of each. Gradients are summed over ranks in fp32 and divided by W; rounded masters are gathered.
The order of the arithmetic is DeepSpeed's, so that both give the same bits, but for the norm: it is summed in fp64, as at other stages.

At ZeRO 0, for optimizers that look at whole parameters, each rank keeps the masters of all, each in the shape of its parameter.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_train.engine.buckets import Bucket, WholeParameter, cut
from mt_train.engine.norms import squared_norm
from mt_train.engine.processes import all_reduce


class MasterWeights:
    """Masters with the optimizer that updates them, under the names by which DeepSpeed's optimizers are asked."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, clip_norm: float | None, rank: int, ranks: int, whole: bool
    ) -> None:
        self.optimizer = optimizer
        self.clip_grad = clip_norm or 0.0
        self.norm = torch.zeros(())
        self.buckets: list[Bucket] = []
        for group in optimizer.param_groups:
            if whole:
                made: list[Bucket] = [WholeParameter(each, ranks=ranks) for each in group["params"]]
            else:
                made = [Bucket(members, rank=rank, ranks=ranks) for members in cut(group["params"])]
            group["params"] = [bucket.master for bucket in made]
            self.buckets += made
        self._updates = [self.buckets] if whole else [[bucket] for bucket in self.buckets]
        """Buckets that the optimizer sees at once: all, where it may count its steps or compare parameters."""
        self._bucket_of = {id(each): bucket for bucket in self.buckets for each in bucket.parameters}
        if not whole:
            self._link()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups."""
        return self.optimizer.param_groups

    def master_of(self, parameter: Tensor) -> Tensor:
        """Return the master of a whole parameter, which is what the optimizer knows of it; a frozen one has none, and is returned."""
        bucket = self._bucket_of.get(id(parameter))
        return parameter if bucket is None else bucket.master

    def publish_one(self, parameter: Tensor) -> None:
        """Bring the changed master of a whole parameter to its weight."""
        self._bucket_of[id(parameter)].publish()

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
        for buckets in self._updates:
            for bucket in buckets:
                bucket.master.grad = bucket.collect()
                if clips:
                    bucket.master.grad.mul_(self.clip_grad / (self.norm + 1e-6))
            self.optimizer.step()
            for bucket in buckets:
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
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None,
        rank: int,
        ranks: int,
        whole: bool,
    ) -> None:
        self.module = module.bfloat16()
        self.train, self.eval = module.train, module.eval
        if ranks > 1:
            for parameter in module.parameters():
                dist.broadcast(parameter.detach(), 0)
        self.optimizer = MasterWeights(optimizer, clip_norm=clip_norm, rank=rank, ranks=ranks, whole=whole)
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
