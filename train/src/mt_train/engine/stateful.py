"""An engine as those see it who read and write what its optimizer holds (``fragments``, ``scalars``, ``transform``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mt_train.engine.plan import Plan
from mt_train.engine.processes import Process


class StatefulEngine(Protocol):
    """The parameters, and the optimizer under and in DeepSpeed's wrapper."""

    @property
    def plan(self) -> Plan:
        """The layout."""
        ...

    @property
    def process(self) -> Process:
        """This one among all."""
        ...

    @property
    def members(self) -> Sequence[Sequence[str]]:
        """Names of the parameters of each group."""
        ...

    @property
    def zero_optimizer(self) -> Any:
        """DeepSpeed's optimizer (at stage 0 the plain one)."""
        ...

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that we made, under DeepSpeed's wrapper."""
        ...

    def optimizer_tensor(self, parameter: Tensor) -> Tensor:
        """Return what the optimizer knows of a whole parameter, at ZeRO 0."""
        ...

    @property
    def sharing(self) -> Any:
        """The process group of the ranks that share parameters; ``None`` is that of all."""
        ...

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The model's parameters under its own names."""
        ...


def names_of_optimizer_tensors(engine: StatefulEngine) -> dict[Tensor, str]:
    """Return the name of each tensor that the optimizer knows at ZeRO 0."""
    return {engine.optimizer_tensor(each): name for name, each in engine.named_parameters()}
