"""Whole parameters of a running engine, read and written wherever its ZeRO stage keeps them: what adapters are given.

DeepSpeed's own ``safe_set_*`` do nothing on frozen weights, and leave the weight that the model computes with as it was; here
both are written, or ``ComponentError`` is raised. All ranks that have a parameter make the same calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_core.errors import ComponentError
from mt_core.groups import whole_shape
from mt_train.engine.build import gather_parameters
from mt_train.engine.engine import Engine
from mt_train.engine.experts import own_rows
from mt_train.engine.fragments import gradient_slice, link_state

WEIGHT, GRADIENT = "weight", "gradient"


class Access:
    """Implements ``mt_core.AdapterContext`` for one optimizer step."""

    def __init__(self, engine: Engine, *, step: int, total_steps: int, rate: float) -> None:
        self._engine = engine
        self.step, self.total_steps, self.rate = step, total_steps, rate
        self._linked = False
        # each name of a shared parameter: the first one may be that of another stage's layer
        self._parameters = dict(engine.module.model.named_parameters(remove_duplicate=False))

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The model's modules whose parameters are here."""
        for name, module in self._engine.module.model.named_modules():
            if not any(parameter.is_meta for parameter in module.parameters(recurse=False)):
                yield name, module

    @torch.no_grad()
    def read(self, name: str, part: str = WEIGHT) -> Tensor:
        """See ``AdapterContext``."""
        parameter = self._parameter(name)
        if not parameter.requires_grad:
            self._only_weight(name, part)
            with gather_parameters([parameter]):
                return self._engine.join_rows(parameter, parameter.detach()).clone()
        value = self._check_present(name, part, self._find(parameter, part)).detach()
        if value.numel() < math.prod(whole_shape(parameter)):
            value = self._engine.join_rows(parameter, value.reshape(-1))
        return value.to(torch.float32, copy=True).view(whole_shape(parameter)).div_(self._scale(part))

    def moments(self, name: str) -> tuple[str, ...]:
        """See ``AdapterContext``. At stages 1 to 3 all weights have those that their flat slices have."""
        state, parameter = self._engine.inner_optimizer.state, self._parameter(name)
        own = self._engine.optimizer_tensor(parameter) if self._engine.plan.zero_stage == 0 else None
        here = state.items() if own is None else [(own, state.get(own, {}))]
        return tuple(sorted({key for owner, values in here for key, each in values.items() if _match(owner, each)}))

    @torch.no_grad()
    def total(self, value: Tensor) -> Tensor:
        """See ``AdapterContext``: DeepSpeed averages gradients over the ranks that share parameters."""
        mean = value.detach() / (self._scale(GRADIENT) * self._engine.plan.sharing_ranks)
        if dist.get_world_size(self._engine.sharing) > 1:
            dist.all_reduce(mean, group=self._engine.sharing)
        return mean

    def step_sum(self, name: str) -> Tensor:
        """See ``AdapterContext``."""
        found = self._engine.block_figures.of_step
        if name not in found:
            known = ", ".join(found) or "none"
            raise ComponentError(f"no block gathered {name!r} in this step; there are: {known} (BlockContext.gather)")
        return found[name].clone()

    @torch.no_grad()
    def write(self, name: str, value: Tensor, part: str = WEIGHT) -> None:
        """See ``AdapterContext``."""
        parameter = self._parameter(name)
        if tuple(value.shape) != whole_shape(parameter):
            raise ComponentError(
                f"{part} of {name} is {whole_shape(parameter)}, and {tuple(value.shape)} was to be written; give the whole"
            )
        own = own_rows(parameter, value)
        if not parameter.requires_grad:
            self._only_weight(name, part)
            with gather_parameters([parameter], write=True):
                parameter.copy_(own)
            return
        if part == GRADIENT:
            self._write_gradient(parameter, value * self._scale(part))
        elif self._engine.plan.zero_stage == 0:
            self._check_present(name, part, self._find(parameter, part)).copy_(own)
            if part == WEIGHT and not self._engine.plan.trains_weights:
                self._engine.zero_optimizer.publish_one(parameter)
        elif part == WEIGHT:
            _write_weight(parameter, own)
        else:
            self._check_present(name, part, self._find(parameter, part))
            _write_state(parameter, own, part)

    def _find(self, parameter: nn.Parameter, part: str) -> Tensor | None:
        """Return a part of a parameter, whole but for rows that expert ranks divide: the live tensor at stage 0, else a copy."""
        if part == GRADIENT:
            return self._gradient(parameter)
        if self._engine.plan.zero_stage > 0:
            if part != WEIGHT and not self._linked:  # once a step: moments are where they were
                link_state(self._engine)
                self._linked = True
            return _read(parameter, part)
        trained = self._engine.optimizer_tensor(parameter)
        if part == WEIGHT:
            return trained.detach()
        found: Tensor | None = self._engine.inner_optimizer.state.get(trained, {}).get(part)
        return found

    def _gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """DeepSpeed's own ``safe_get_full_grad`` is not asked: its counterpart for writing fails on shares of unequal size."""
        found = gradient_slice(self._engine, parameter)
        if self._engine.plan.zero_stage == 0:
            return None if found is None else found[1]
        flat = torch.zeros(math.prod(whole_shape(parameter)), device=self._engine.process.device)
        if found is not None:
            start, piece = found
            flat[start : start + piece.numel()] = piece.reshape(-1)
        if dist.get_world_size(self._engine.sharing) > 1:
            dist.all_reduce(flat, group=self._engine.sharing)
        return flat

    def _write_gradient(self, parameter: nn.Parameter, value: Tensor) -> None:
        whole = self._whole_gradients.get(id(parameter))
        if whole is not None:  # its norm is taken on each rank, of the parts of others too
            whole.copy_(own_rows(parameter, value).view_as(whole))
            return
        found = gradient_slice(self._engine, parameter)
        if found is not None:
            start, piece = found
            piece.copy_(value.reshape(-1)[start : start + piece.numel()].view_as(piece))

    @cached_property
    def _whole_gradients(self) -> dict[int, Tensor]:
        """Number of each parameter → its live gradient, where every rank has all of it: DeepSpeed's optimizer for bf16 takes its norm of
        that. Empty with all others, and without parameters that no loss reached."""
        zero: Any = self._engine.zero_optimizer
        if not hasattr(zero, "bf16_groups"):
            return {}
        groups = zip(zero.bf16_groups, zero.fp32_groups_gradients, zero.fp32_groups_has_gradients, strict=True)
        return {
            id(parameter): gradient
            for group in groups
            for parameter, gradient, is_reached in zip(*group, strict=True)
            if is_reached
        }

    def _scale(self, part: str) -> float:
        """Return the loss scale of the gradients in fp16."""
        scales = self._engine.plan.scales_loss and part == GRADIENT
        return float(self._engine.zero_optimizer.loss_scaler.cur_scale) if scales else 1.0

    def _parameter(self, name: str) -> nn.Parameter:
        if name not in self._parameters:
            raise ComponentError(f"there is no parameter {name!r} on this rank; modules() gives those that are here")
        return self._parameters[name]

    def _only_weight(self, name: str, part: str) -> None:
        if part != WEIGHT:
            raise ComponentError(f"{name} is frozen: it has a weight, and no {part!r}")

    def _check_present(self, name: str, part: str, value: Tensor | None) -> Tensor:
        if value is not None:
            return value
        state = self._engine.inner_optimizer.state
        keys = sorted({key for each in state.values() for key in each})
        raise ComponentError(
            f"{name} has no {part!r} now; the optimizer's state has {', '.join(keys) or 'nothing yet: it is made in the first step'}"
        )


def _match(parameter: Tensor, value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.numel() == parameter.numel()


def _read(parameter: nn.Parameter, part: str) -> Tensor | None:
    """Read at stages 1 to 3, gathered."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if part == WEIGHT:
        return safe_get_full_fp32_param(parameter)  # type: ignore[no-any-return]
    return safe_get_full_optimizer_state(parameter, part)  # type: ignore[no-any-return]


def _write_weight(parameter: nn.Parameter, value: Tensor) -> None:
    from deepspeed.utils import safe_set_full_fp32_param

    safe_set_full_fp32_param(parameter, value)
    with gather_parameters([parameter], write=True):  # what the model computes with, which DeepSpeed leaves as it was
        parameter.copy_(value)


def _write_state(parameter: nn.Parameter, value: Tensor, part: str) -> None:
    from deepspeed.utils import safe_set_full_optimizer_state

    safe_set_full_optimizer_state(parameter, value, part)


class EngineSteps:
    """Calls the adapter and the model of an engine around its updates, where they want to be called."""

    def __init__(self, engine: Engine, total_steps: int) -> None:
        self._engine, self._total_steps = engine, total_steps

    def after_backward(self, step: int) -> None:
        """Call the adapter before the update of this step (from 1)."""
        if self._engine.adapter.steps:
            self._engine.adapter.after_backward(self._access(step))

    def after_step(self, step: int) -> None:
        """Call the adapter after the update, where it was applied, and then the model."""
        model = self._engine.module.model
        if not (self._engine.adapter.steps or model.steps):
            return
        access = self._access(step)
        if self._engine.adapter.steps:
            self._engine.adapter.after_step(access)
        if model.steps:
            with torch.no_grad():
                model.after_step(access)

    def _access(self, step: int) -> Access:
        return Access(self._engine, step=step, total_steps=self._total_steps, rate=self._engine.current_rate)
