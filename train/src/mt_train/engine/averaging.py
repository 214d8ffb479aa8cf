"""Weights that an optimizer publishes instead of those that it trains.

An optimizer with ``average_of(parameter) -> Tensor`` (schedule-free ones) trains at one point and is evaluated at another. The engine
puts that in for evaluations and checkpoints, and takes it out again to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Averaging(Protocol):
    """An optimizer whose trained weights are not those to use."""

    state: Any

    def average_of(self, parameter: Tensor) -> Tensor:
        """Return what to use in the place of a parameter that has state, which may be a flat piece of several."""
        ...


@contextmanager
def use_averaged_weights(wrapper: Any, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """The weights to use inside; every rank must enter and leave. ``wrapper`` is DeepSpeed's optimizer."""
    stepped = [
        piece for piece, state in optimizer.state.items() if state
    ]  # who asks for state leaves some that is empty
    if not isinstance(optimizer, Averaging) or not stepped:
        yield
        return
    trained = {piece: piece.detach().clone() for piece in stepped}
    _put({piece: optimizer.average_of(piece) for piece in trained}, wrapper)
    try:
        yield
    finally:
        _put(trained, wrapper)


@torch.no_grad()
def _put(values: Mapping[Tensor, Tensor], wrapper: Any) -> None:
    for piece, value in values.items():
        piece.copy_(value)
    spread(wrapper)


@torch.no_grad()
def spread(wrapper: Any) -> None:
    """Bring changed masters to the live weights of all ranks; at stage 0 they are the same tensors."""
    if hasattr(wrapper, "update_lp_params"):
        wrapper.update_lp_params()
    elif hasattr(wrapper, "fp32_partitioned_groups_flat"):
        release_gathered(wrapper)
        for number in range(len(wrapper.fp32_partitioned_groups_flat)):
            wrapper._reassign_or_swap_out_partitioned_parameters(number)


def release_gathered(wrapper: Any) -> None:
    """Release at stage 3 what an evaluation has gathered and kept for the next forward, which would then see it as it was: whoever changes
    the pieces calls this first."""
    if hasattr(wrapper, "fp32_partitioned_groups_flat"):
        wrapper._partition_all_parameters()
