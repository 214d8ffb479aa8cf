"""Size of an optimizer's state, found out by asking it: no table of names, so any plugin's optimizer is counted."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.protocols import GradientTransform

NUMBERS = 64
"""Numbers of a stand-in, or of each of its dimensions."""

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer | GradientTransform]


def state_bytes(
    make: MakeOptimizer,
    groups: Sequence[dict[str, Any]],
    names: Mapping[int, str],
    *,
    flat: bool,
    whole: bool = False,
) -> tuple[float, ...]:
    """Bytes that the optimizer keeps for each number of a group, from one step on small fp32 stand-ins on the CPU.

    ``names`` are those of the parameters by their id. ``flat``: ZeRO shows an optimizer flat pieces. Without it the stand-ins have
    the shapes of the parameters, cut to ``NUMBERS`` in each dimension: exact for state that has a number for each weight, an
    upper bound for factored state. ``whole``: the shapes of the parameters, which have no memory, since state may follow from a rank
    that is smaller than a matrix; an optimizer that looks at values gets those that are cut.
    """
    if flat:
        return _count_state(make, groups, names, lambda shape: (NUMBERS,), "cpu")
    if not whole:
        return _count_state(make, groups, names, _cut_shape, "cpu")
    try:
        return _count_state(make, groups, names, tuple, "meta")
    except (RuntimeError, TypeError):  # how tensors without memory refuse to tell their values
        return _count_state(make, groups, names, _cut_shape, "cpu")


def _count_state(
    make: MakeOptimizer,
    groups: Sequence[dict[str, Any]],
    names: Mapping[int, str],
    form: Callable[[Sequence[int]], tuple[int, ...]],
    device: str,
) -> tuple[float, ...]:
    shapes = [Counter(form(each.shape) for each in group["params"]) for group in groups]
    standing = [
        {**group, "params": [nn.Parameter(torch.ones(shape, device=device)) for shape in sorted(own)]}
        for group, own in zip(groups, shapes, strict=True)
    ]
    made = make(standing)
    optimizer = made if isinstance(made, torch.optim.Optimizer) else made.optimizer
    for group in standing:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = []
    for group, own in zip(standing, shapes, strict=True):
        size = sum(own[tuple(each.shape)] * _count_kept(optimizer.state[each]) for each in group["params"])
        kept.append(size / sum(count * math.prod(shape) for shape, count in own.items()))
    if isinstance(made, torch.optim.Optimizer):
        return tuple(kept)
    return tuple(size + _transforms_bytes(made, group, names) for size, group in zip(kept, groups, strict=True))


def _transforms_bytes(transform: GradientTransform, group: Mapping[str, Any], names: Mapping[int, str]) -> float:
    """Bytes that a gradient transform keeps for each number of a group; it sees names and whole shapes on every layout.

    Its state may follow from a rank that is smaller than a matrix (GaLore), so that only whole shapes tell its size. They have no
    memory; a transform that looks at values gets stand-ins, which have some.
    """
    if not group.get("transformed"):
        return 0.0
    whole = [(names[id(each)], tuple(each.shape)) for each in group["params"]]
    try:
        return _kept_by(transform, whole, torch.device("meta"))
    except (RuntimeError, TypeError):  # how tensors without memory refuse to tell their values
        cut = [(name, _cut_shape(shape)) for name, shape in whole]
        return _kept_by(transform, cut, torch.device("cpu"))


def _kept_by(
    transform: GradientTransform, gradients: Sequence[tuple[str, tuple[int, ...]]], device: torch.device
) -> float:
    """Bytes for each number, of gradients with these names and shapes. Blocks are alike: one of a shape is asked for all."""
    kinds = [(re.sub(r"\d+", "*", name), shape) for name, shape in gradients]
    asked, kept = dict(zip(kinds, (name for name, _ in gradients), strict=True)), 0
    for (kind, shape), count in Counter(kinds).items():
        state: dict[str, Tensor] = {}
        transform.transform(asked[kind, shape], torch.ones(shape, device=device), state)
        kept += count * _count_kept(state)
    return kept / sum(math.prod(shape) for _, shape in kinds)


def _cut_shape(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(size, NUMBERS) for size in shape)


def _count_kept(state: dict[str, Any]) -> int:
    """Bytes that grow with the parameter: not its step count."""
    return sum(
        value.numel() * value.element_size() for value in state.values() if isinstance(value, Tensor) and value.dim()
    )
