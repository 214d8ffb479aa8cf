"""The trained weights of an engine as callbacks see them: slices in fp32, wherever ZeRO has put them.

Not for pipelines, whose stages have different parameters; callbacks that need it declare layouts without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_core.groups import whole_shape
from mt_train.engine.averaging import release_gathered, spread
from mt_train.engine.build import is_partitioned
from mt_train.engine.engine import Engine
from mt_train.engine.experts import own_rows, part_of
from mt_train.engine.fragments import master_slice
from mt_train.engine.processes import all_reduce

Slices = Sequence[tuple[str, int, Tensor]]


class LiveWeights:
    """Implements ``mt_core.TrainedWeights``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def rank(self) -> int:
        """Return the rank of this process."""
        return self._engine.process.rank

    @property
    def world(self) -> int:
        """Processes of the run."""
        return self._engine.process.world

    @property
    def sliced(self) -> bool:
        """Return whether each rank's slices are its own."""
        return self._engine.plan.zero_stage > 0

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The one that we made, under DeepSpeed's wrapper."""
        return self._engine.inner_optimizer

    def states(self) -> list[dict[str, Any]]:
        """See ``mt_core.TrainedWeights``."""
        directions = self._engine.directions
        return [*self.optimizer.state.values(), *([] if directions is None else directions.state.values())]

    def slices(self) -> Iterator[tuple[str, int, Tensor]]:
        """(name, start, flat fp32 values): live views of what this rank holds."""
        for name, parameter in self._trained_parameters():
            if (found := master_slice(self._engine, parameter)) is not None:
                yield name, *found

    def gather(self, slices: Slices) -> Iterator[tuple[str, Tensor]]:
        """One parameter at a time, added up over the ranks; all ranks must walk through all of them."""
        held = {name: (start, values) for name, start, values in slices}
        for name, parameter in self._trained_parameters():
            shape = torch.Size(whole_shape(parameter))
            flat = torch.zeros(shape.numel(), device=self._engine.process.device)
            if name in held:
                start, values = held[name]
                flat[start : start + len(values)] = values
            if self.sliced:
                all_reduce(flat)
            elif (experts := self._engine.experts) is not None and part_of(parameter)[1] > 1:
                dist.all_reduce(flat, group=experts.group)
            yield name, flat.view(shape)

    def put(self, slices: Slices) -> None:
        """Masters and live weights have these values from now on; optimizer state is left alone."""
        for (_, _, master), (_, _, values) in zip(self.slices(), slices, strict=True):
            master.copy_(values)
        spread(self._engine.zero_optimizer)

    @contextmanager
    def substitute(self, slices: Slices) -> Iterator[None]:
        """The model has these values inside, rounded to its precision. Optimizer and masters are left alone."""
        kept = [
            (place, place.clone()) for place in (_live_tensor(parameter) for _, parameter in self._trained_parameters())
        ]
        try:
            self._put(slices)
            yield
        finally:
            release_gathered(self._engine.zero_optimizer)
            for place, value in kept:
                place.copy_(value)

    def _put(self, slices: Slices) -> None:
        release_gathered(self._engine.zero_optimizer)
        if self._engine.plan.zero_stage == 3:
            held = {name: values for name, _, values in slices}
            for name, parameter in self._trained_parameters():
                if name in held:
                    _live_tensor(parameter)[: len(held[name])].copy_(held[name])
            return
        parameters = dict(self._trained_parameters())
        for name, value in self.gather(slices):
            _live_tensor(parameters[name]).copy_(own_rows(parameters[name], value))

    def _trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, each) for name, each in self._engine.named_parameters() if each.requires_grad)


def _live_tensor(parameter: Any) -> Tensor:
    """Return the tensor that forward and backward read: the whole weight, or under ZeRO 3 this rank's share."""
    return parameter.ds_tensor.detach() if is_partitioned(parameter) else parameter.detach()  # type: ignore[no-any-return]
