"""Size of an optimizer's state, found out by asking it: no table of names, so any plugin's optimizer is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.protocols import GradientTransform

NUMBERS = 64
"""Numbers of a stand-in, or of each of its dimensions."""

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer | GradientTransform]


def state_bytes(make: MakeOptimizer, groups: Sequence[dict[str, Any]], *, flat: bool) -> tuple[float, ...]:
    """Bytes that the optimizer keeps for each number of a group, from one step on small fp32 stand-ins on the CPU.

    ``flat``: ZeRO shows an optimizer flat pieces. Without it the stand-ins have the shapes of the parameters, cut to
    ``NUMBERS`` in each dimension: exact for state that has a number for each weight, an upper bound for factored state.
    """
    standing = [{**group, "params": _stand_ins(group["params"], flat)} for group in groups]
    made = make(standing)
    optimizer = made if isinstance(made, torch.optim.Optimizer) else made.optimizer
    for group in standing:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = [sum(map(_count_kept, (optimizer.state[each] for each in group["params"]))) for group in standing]
    kept = [size / sum(each.numel() for each in group["params"]) for size, group in zip(kept, standing, strict=True)]
    if isinstance(made, torch.optim.Optimizer):
        return tuple(kept)
    return tuple(size + _transforms_bytes(made, group) for size, group in zip(kept, groups, strict=True))


def _transforms_bytes(transform: GradientTransform, group: Mapping[str, Any]) -> float:
    """Bytes that a gradient transform keeps for each number of a group; it sees whole shapes on every layout."""
    if not group.get("transformed"):
        return 0.0
    standing = _stand_ins(group["params"], flat=False)
    states: list[dict[str, Tensor]] = [{} for _ in standing]
    for parameter, state in zip(standing, states, strict=True):
        transform.transform(str(tuple(parameter.shape)), torch.ones_like(parameter), state)
    return sum(map(_count_kept, states)) / sum(parameter.numel() for parameter in standing)


def _stand_ins(parameters: Sequence[Tensor], flat: bool) -> list[nn.Parameter]:
    shapes = {(NUMBERS,)} if flat else {tuple(min(size, NUMBERS) for size in each.shape) for each in parameters}
    return [nn.Parameter(torch.ones(shape)) for shape in sorted(shapes)]


def _count_kept(state: dict[str, Any]) -> int:
    """Bytes that grow with the parameter: not its step count."""
    return sum(
        value.numel() * value.element_size() for value in state.values() if isinstance(value, Tensor) and value.dim()
    )
