"""Slices of optimizer state, as DeepSpeed spreads them over ranks: (name, start, length) and the tensors there.

The private attributes of DeepSpeed that this takes are used in this file only (contract test:
tests/core/engine/test_fragments.py). Reading and writing need no communication.

Starts and lengths count elements of the flattened parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_core.engine.build import is_partitioned
from mt_core.engine.engine import Engine

MASTER = "master"
"""Key of the fp32 copy of a half-precision weight, beside the optimizer's own keys (``exp_avg`` …)."""

ReadSlice = Callable[[str, str, int, int], Tensor]
"""(parameter, key, start, length) -> the saved values there, flat."""


@dataclass(frozen=True)
class Fragment:
    """What this rank holds of one parameter: views into the live state."""

    name: str
    start: int
    length: int
    tensors: dict[str, Tensor]


def fragments(engine: Engine) -> Iterator[Fragment]:
    """The slices that this rank owns; the optimizer must have made its state."""
    _link_state(engine)
    for name, parameter in engine.named_parameters():
        if not parameter.requires_grad:
            continue
        place = _place(engine, parameter)
        if place is not None:
            start, length = place
            tensors = {key: _view(engine, parameter, key)[:length] for key in _keys(engine, parameter)}
            yield Fragment(name, start, length, tensors)


def scalars(engine: Engine) -> dict[str, float]:
    """Zero-dimensional optimizer state (Adam's step count), which is the same for all parameters."""
    found: dict[str, set[float]] = {}
    for state in inner_optimizer(engine).state.values():
        for key, value in state.items():
            if not isinstance(value, Tensor) or value.dim() == 0:
                found.setdefault(key, set()).add(float(value))
    for key, values in found.items():
        assert len(values) == 1, f"optimizer state {key!r} differs between parameters: {sorted(values)}"
    return {key: values.pop() for key, values in found.items()}


@torch.no_grad()
def restore(engine: Engine, read: ReadSlice, keys: list[str], numbers: dict[str, float]) -> None:
    """Put saved state into a fresh engine that was made over the saved weights.

    In fp32 the master weights are those weights already; in half precision they are among ``keys``.
    """
    _create_state(engine, [key for key in keys if key != MASTER], numbers)
    for name, parameter in engine.named_parameters():
        place = _place(engine, parameter) if parameter.requires_grad else None
        if place is None:
            continue
        for key in keys:
            _view(engine, parameter, key)[: place[1]].copy_(read(name, key, *place))


def loss_scale(engine: Engine) -> dict[str, float]:
    """State of the fp16 loss scaler; empty in other precisions."""
    scaler = getattr(engine.zero_optimizer, "loss_scaler", None)
    names = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
    if not engine.plan.scales_loss or scaler is None:
        return {}
    return {name: float(getattr(scaler, name)) for name in names if hasattr(scaler, name)}


def restore_loss_scale(engine: Engine, numbers: dict[str, float]) -> None:
    """Put the state of the fp16 loss scaler back."""
    for name, value in numbers.items():
        scaler = engine.zero_optimizer.loss_scaler
        setattr(scaler, name, type(getattr(scaler, name))(value))


def master_slice(engine: Engine, parameter: nn.Parameter) -> tuple[int, Tensor] | None:
    """(start, live flat values) of this rank's part of a trained weight in fp32; ``None`` where it holds nothing of it."""
    place = _place(engine, parameter)
    if place is None:
        return None
    flat = parameter.view(-1) if engine.plan.zero_stage == 0 else _view(engine, parameter, MASTER)
    return place[0], flat.detach()[: place[1]]


# --------------------------------------------------------------------------------------------------- DeepSpeed's insides


def inner_optimizer(engine: Engine) -> torch.optim.Optimizer:
    """The optimizer that we made, under DeepSpeed's wrapper."""
    return engine.zero_optimizer if engine.plan.zero_stage == 0 else engine.zero_optimizer.optimizer  # type: ignore[no-any-return]


def _place(engine: Engine, parameter: nn.Parameter) -> tuple[int, int] | None:
    """(start, length) of this rank's slice, or ``None``."""
    if engine.plan.zero_stage == 0:
        return 0, parameter.numel()
    if is_partitioned(parameter):
        p: Any = parameter
        share = int(p.ds_tensor.ds_numel)
        start = share * dist.get_rank(p.ds_process_group)
        length = max(0, min(share, int(p.ds_numel) - start))  # the last share is padded
        return (start, length) if length else None
    mapping = parameter._hp_mapping  # type: ignore[attr-defined]
    if mapping is None:
        return None
    return int(mapping.lp_fragment_address.start), int(mapping.lp_fragment_address.numel)


def _keys(engine: Engine, parameter: nn.Parameter) -> list[str]:
    if engine.plan.zero_stage == 0:
        state = inner_optimizer(engine).state[parameter]
        return [key for key, value in state.items() if isinstance(value, Tensor) and value.shape == parameter.shape]
    own = [] if engine.plan.dtype == "fp32" else [MASTER]
    first = next(iter(inner_optimizer(engine).state.values()))
    return own + [key for key, value in first.items() if isinstance(value, Tensor) and value.dim() > 0]


def _view(engine: Engine, parameter: nn.Parameter, key: str) -> Tensor:
    """The live tensor of this rank's slice, flat."""
    if engine.plan.zero_stage == 0:
        return inner_optimizer(engine).state[parameter][key].view(-1)  # type: ignore[no-any-return]
    state_key = None if key == MASTER else key
    if is_partitioned(parameter):
        view, _ = engine.zero_optimizer._get_fp32_opt_state_partition(parameter, False, optim_state_key=state_key)
        return view  # type: ignore[no-any-return]
    mapping = parameter._hp_mapping  # type: ignore[attr-defined]
    view = mapping.hp_fragment if state_key is None else mapping.optim_fragment[state_key]
    return view.view(-1)  # type: ignore[no-any-return]


def _create_state(engine: Engine, keys: list[str], numbers: dict[str, float]) -> None:
    """The state that the optimizer would make in its first step."""
    inner = inner_optimizer(engine)
    for group in inner.param_groups:
        for parameter in _flat_parameters(engine, group):
            zeros = {key: torch.zeros_like(parameter) for key in keys}
            inner.state[parameter] = {**{key: torch.tensor(value) for key, value in numbers.items()}, **zeros}
    _link_state(engine)


def _link_state(engine: Engine) -> None:
    """Connect parameters with their state at stages 1 and 2.

    DeepSpeed does so once, after the step of the first parameter group, when the other groups have no state yet.
    """
    wrapper = engine.zero_optimizer
    if hasattr(wrapper, "_lazy_init_hp_params_optimizer_state"):
        wrapper._hp_optimizer_states_linked = False
        wrapper._lazy_init_hp_params_optimizer_state()


def _flat_parameters(engine: Engine, group: dict[str, Any]) -> list[Tensor]:
    if engine.plan.zero_stage < 3:
        return list(group["params"])
    if group is not engine.zero_optimizer.optimizer.param_groups[0]:
        return []
    return list(engine.zero_optimizer.fp32_partitioned_groups_flat)
