"""Directions in the place of gradients: what a ``GradientTransform`` makes of whole ones, wherever ZeRO has put them.

It happens between the last backward and the update. Each parameter has an owner among the ranks that share it: that rank gets the
whole gradient, keeps the transform's state of it, and sends the direction to the others. So the work and the state are divided
among the ranks at every ZeRO stage. Clipping comes first, by the norm of all gradients; DeepSpeed's own would see directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_core.errors import ComponentError
from mt_core.groups import whole_shape
from mt_core.protocols import GradientTransform
from mt_train.engine.fragments import gradient_slice
from mt_train.engine.norms import squared_norm
from mt_train.engine.processes import all_reduce
from mt_train.engine.stateful import StatefulEngine

PREFIX = "transform"
"""Prefix of the names of a transform's tensors in a checkpoint: ``transform::model.layers.0.mlp.up_proj.weight::momentum_buffer``."""


@dataclass(frozen=True)
class Part:
    """A parameter whose gradient is transformed. ``owner`` counts the ranks that share it."""

    name: str
    parameter: nn.Parameter
    owner: int


class PreconditionedGradients:
    """A ``GradientTransform`` at work on the gradients of an engine; ``norm`` is that of the last step's, before they were clipped."""

    def __init__(self, engine: StatefulEngine, transform: GradientTransform, chosen: set[int]) -> None:
        self.norm = math.nan
        self.state: dict[str, dict[str, Tensor]] = {}
        self._engine, self._transform = engine, transform
        self._ranks = engine.plan.sharing_ranks
        self._place = engine.process.rank % self._ranks
        named = [(name, parameter) for name, parameter in engine.named_parameters() if id(parameter) in chosen]
        places = owners([whole_shape(parameter) for _, parameter in named], self._ranks)
        self._parts = [Part(*each, owner) for each, owner in zip(named, places, strict=True)]
        if engine.plan.zero_stage > 0:
            engine.zero_optimizer.clip_grad = 0.0

    # ------------------------------------------------------------------------------------------------------- training

    @torch.no_grad()
    def clip_and_take(self) -> None:
        """Clip and take all, above stage 0. Gradients that are not finite stay as they are: DeepSpeed then passes over the step."""
        self.norm = self._clip()
        if math.isfinite(self.norm):
            self.take()

    @torch.no_grad()
    def take(self) -> None:
        """Put directions in the place of gradients; every rank must call it."""
        whole = {}
        for part in self._parts:
            gradient = self._gather(part)
            if part.owner == self._place and gradient is not None:
                whole[part.name] = gradient
        for name, gradient in whole.items():
            whole[name] = self._direction(name, gradient)
        for part in self._parts:
            self._spread(part, whole.pop(part.name, None))

    def _direction(self, name: str, gradient: Tensor) -> Tensor:
        shape = gradient.shape
        direction = self._transform.transform(name, gradient, self.state.setdefault(name, {}))
        if direction.shape != shape:
            raise ComponentError(
                f"{type(self._transform).__name__} gives a direction of shape {tuple(direction.shape)} for {name}, which is"
                f" {tuple(shape)}; its plugin must give one number for each weight"
            )
        return direction

    def _gather(self, part: Part) -> Tensor | None:
        """The whole gradient, on the owner; elsewhere what must not be used. ``None`` where no loss reached the parameter."""
        found, shape = self._slice(part.parameter), whole_shape(part.parameter)
        if self._engine.plan.zero_stage == 0:
            return None if found is None else found[1]
        flat = torch.zeros(math.prod(shape), device=self._engine.process.device)
        if found is not None:
            start, gradient = found
            flat[start : start + gradient.numel()] = gradient.reshape(-1)
        if self._ranks > 1:
            dist.reduce(flat, self._rank_of(part), group=self._engine.sharing)
        return flat.view(shape)

    def _spread(self, part: Part, direction: Tensor | None) -> None:
        found = self._slice(part.parameter)
        if self._ranks > 1:
            if direction is None:
                direction = torch.empty(whole_shape(part.parameter), device=self._engine.process.device)
            direction = direction.contiguous()
            dist.broadcast(direction, self._rank_of(part), group=self._engine.sharing)
        if found is not None and direction is not None:
            start, gradient = found
            gradient.copy_(direction.view(-1)[start : start + gradient.numel()].view_as(gradient))

    def _clip(self) -> float:
        """Bound the gradients of all trained parameters, and return their norm: summed in fp64 and rounded, as everywhere."""
        slices, counted = list[Tensor](), list[Tensor]()
        for _, parameter in self._engine.named_parameters():
            found = self._slice(parameter) if parameter.requires_grad else None
            if found is not None:
                slices.append(found[1])
                if not getattr(parameter, "ds_pipe_replicated", False):  # another stage counts its copy
                    counted.append(found[1])
        total = squared_norm(counted, self._engine.process.device)
        norm, most = float(all_reduce(total).sqrt().float()), self._engine.plan.clip_norm
        if most and math.isfinite(norm) and norm > most:
            torch._foreach_mul_(slices, most / (norm + 1e-6))
        return norm

    def _slice(self, parameter: nn.Parameter) -> tuple[int, Tensor] | None:
        return gradient_slice(self._engine, parameter)

    def _rank_of(self, part: Part) -> int:
        """Return the owner's rank among all processes: those that share parameters are neighbours."""
        return self._engine.process.rank - self._place + part.owner

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """The state of this rank's parameters, by its name in a checkpoint."""
        return {f"{PREFIX}::{name}::{key}": value for name, state in self.state.items() for key, value in state.items()}

    def restore(self, kept: Mapping[str, Mapping[str, Callable[[], Tensor]]]) -> None:
        """Take the state of this rank's parameters, whichever ranks had it: parameter → key → a function that reads it."""
        device = self._engine.process.device
        for part in self._parts:
            if part.owner == self._place and part.name in kept:
                self.state[part.name] = {key: read().to(device) for key, read in kept[part.name].items()}


def owners(shapes: Sequence[tuple[int, ...]], ranks: int) -> list[int]:
    """Return for each shape the rank that transforms it: the largest first, each to whoever has the least numbers so far."""
    sizes = [math.prod(shape) for shape in shapes]
    loads, found = [0] * ranks, [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        found[place] = loads.index(min(loads))
        loads[found[place]] += sizes[place]
    return found


def transformed_parameters(groups: Sequence[Mapping[str, Any]]) -> set[int]:
    """Ids of the parameters in groups whose ``transformed_parameters`` is true."""
    return {id(parameter) for group in groups if group.get("transformed") for parameter in group["params"]}
