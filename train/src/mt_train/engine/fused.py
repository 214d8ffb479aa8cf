"""Updates while gradients arrive, so that there is never more than one of them (LOMO, https://arxiv.org/abs/2306.09782).

What an engine promises holds here too: a step that is not finite changes nothing, and the norm of all gradients bounds each of
them. Neither is known before the last gradient, so each step computes its rows twice, as in the paper (section 3.3.1): for the
norm, and for the updates. Random numbers are the same both times. DeepSpeed has no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_core.nn import Batch
from mt_train.engine.engine import Engine
from mt_train.engine.norms import squared_norm
from mt_train.engine.processes import all_reduce
from mt_train.engine.step import weighted_loss
from mt_train.engine.step_result import StepResult, StepSize


class FusedEngine(Engine):
    """ZeRO 0, with an optimizer that has ``step_of(parameter, group)``."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._use: Callable[[nn.Parameter], object] = lambda parameter: None
        self._group_of = {id(each): group for group in self.inner_optimizer.param_groups for each in group["params"]}
        for parameter in self.module.parameters():
            if id(parameter) in self._group_of:
                parameter.register_post_accumulate_grad_hook(self._take_gradient)  # type: ignore[no-untyped-call]

    def train_step(
        self,
        window: Sequence[Batch],
        stop: Callable[[], float] = lambda: False,
        before_update: Callable[[], object] = lambda: None,
    ) -> StepResult:
        """See ``Engine``."""
        assert len(window) == 1, "the plan refuses several micro-batches: they would have to be added up"
        size, batch = self._size(window), window[0].to(self.process.device)
        squares: list[Tensor] = []
        device = self.process.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self.block_figures.sums.collecting():
            sums = self._pass(batch, size, lambda each: squares.append(squared_norm([_gradient(each)], device)))
        norm = torch.stack(squares).sum().sqrt()
        wish = torch.full((1,), float(stop()), device=device)
        sums = all_reduce(torch.cat([sums, self._block_pairs(sums), wish]))
        values = torch.cat([sums, norm.float().reshape(1)]).tolist()
        if not (math.isfinite(values[0]) and math.isfinite(values[-1])):
            return self._result(values, size, applied=False)
        before_update()
        clip, norm_now = self.plan.clip_norm, values[-1]
        factor = clip / (norm_now + 1e-6) if clip and norm_now > clip else 1.0
        self._pass(batch, size, lambda each: self._update_one(each, factor))
        return self._result(values, size, applied=True)

    def _pass(self, batch: Batch, size: StepSize, use: Callable[[nn.Parameter], object]) -> Tensor:
        """Forward and backward; ``use`` is called with each parameter when its gradient is complete."""
        self._use = use
        outputs = self.module(batch)  # type: ignore[operator]
        weighted_loss(outputs, self._scales(size)).backward()  # type: ignore[no-untyped-call]
        return torch.stack([output.detach().float() for output in outputs])

    @torch.no_grad()
    def _take_gradient(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None, "torch calls this when there is a gradient"
        if self.process.world > 1:
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(self.process.world)
        self._use(parameter)
        parameter.grad = None

    def _update_one(self, parameter: nn.Parameter, factor: float) -> None:
        _gradient(parameter).mul_(factor)
        optimizer: Any = self.inner_optimizer
        optimizer.step_of(parameter, self._group_of[id(parameter)])


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "see FusedEngine._take_gradient"
    return parameter.grad
