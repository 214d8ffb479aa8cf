"""Slices of optimizer state, as DeepSpeed spreads them over ranks: (name, start, length) and the tensors there.

Most private attributes of DeepSpeed that are used at all are used here; averaging, pipelines and transforms of gradients use a few
more (tests/train/engine/test_layouts.py runs all of them). Reading and writing need no communication.

Starts and lengths count elements of the flattened parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_core.errors import CheckpointError
from mt_train.engine.averaging import Averaging, spread
from mt_train.engine.build import is_partitioned
from mt_train.engine.experts import part_of
from mt_train.engine.masters import MasterWeights
from mt_train.engine.stateful import StatefulEngine, names_of_optimizer_tensors

MASTER = "master"
"""Key of the fp32 copy of a half-precision weight, beside the optimizer's own keys (``exp_avg`` …)."""


@dataclass(frozen=True)
class Fragment:
    """Part of one parameter that this rank holds: views into the live state."""

    name: str
    start: int
    length: int
    tensors: dict[str, Tensor]
    own_shapes: frozenset[str] = frozenset()
    """Keys of those that have a shape of their own, and as many numbers as a flat one."""


def fragments(engine: StatefulEngine) -> Iterator[Fragment]:
    """The slices that this rank owns; the optimizer must have made its state.

    At stage 0 an optimizer of whole parameters may also keep tensors of other shapes, which come as they are.
    Raises ``CheckpointError`` for state that is neither tensor nor number.
    """
    link_state(engine)
    for name, parameter in engine.named_parameters():
        if not parameter.requires_grad:
            continue
        place = _place(engine, parameter)
        if place is not None:
            start, length = place
            tensors = {key: _view(engine, parameter, key)[:length] for key in _keys(engine, parameter)}
            others = _unlike(engine, parameter)
            own_shapes = frozenset(key for key, value in others.items() if value.shape == (length,))
            yield Fragment(name, start, length, tensors | others, own_shapes)


class SavedOptimizer(Protocol):
    """Saved optimizer state by name, whichever ranks wrote it."""

    @property
    def own_scalars(self) -> Mapping[str, dict[str, Any]]:
        """Return what ``own_scalars`` gave."""
        ...

    def holds(self, name: str) -> bool:
        """Return whether this parameter was trained in the run that saved."""
        ...

    def keys(self, parameters: Sequence[str] | None) -> list[str]:
        """Return the keys of these parameters' state that have a number for each weight."""
        ...

    def read(self, name: str, key: str, start: int, length: int) -> Tensor:
        """The values of a parameter's state there, flat."""
        ...

    def tensors_of(self, parameter: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors of a parameter that have a number for each weight, flat, and those of another shape as they were."""
        ...


@torch.no_grad()
def restore(engine: StatefulEngine, saved: SavedOptimizer, numbers: dict[str, Any]) -> None:
    """Put saved state into a fresh engine that was made over the saved weights; ``numbers`` are what ``scalars`` gave.

    In fp32 the master weights are those weights already; in half precision they are among the keys.
    """
    if engine.plan.zero_stage == 0:
        _restore_whole(engine, saved, numbers)
        return
    keys = [saved.keys(names or None) for names in engine.members]
    _create_state(engine, keys, numbers)
    group_of = {name: number for number, names in enumerate(engine.members) for name in names}
    for name, parameter in engine.named_parameters():
        place = _place(engine, parameter) if parameter.requires_grad else None
        if place is None:
            continue
        wanted = keys[group_of[name]]
        if saved.holds(name):  # without some where it had no gradient yet: zeros, as in a flat piece
            wanted = [key for key in wanted if key in saved.keys([name])]
        for key in wanted:
            _view(engine, parameter, key)[: place[1]].copy_(saved.read(name, key, *place))
    if isinstance(engine.inner_optimizer, Averaging):
        spread(engine.zero_optimizer)


def loss_scale(engine: StatefulEngine) -> dict[str, float]:
    """State of the fp16 loss scaler; empty in other precisions."""
    scaler = getattr(engine.zero_optimizer, "loss_scaler", None)
    names = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
    if not engine.plan.scales_loss or scaler is None:
        return {}
    return {name: float(getattr(scaler, name)) for name in names if hasattr(scaler, name)}


def restore_loss_scale(engine: StatefulEngine, numbers: dict[str, float]) -> None:
    """Put the state of the fp16 loss scaler back."""
    for name, value in numbers.items():
        scaler = engine.zero_optimizer.loss_scaler
        setattr(scaler, name, type(getattr(scaler, name))(value))


def master_slice(engine: StatefulEngine, parameter: nn.Parameter) -> tuple[int, Tensor] | None:
    """(start, live flat values) of this rank's part of a trained weight in fp32; ``None`` where it holds nothing of it."""
    place = _place(engine, parameter)
    if place is None:
        return None
    flat = _view(engine, parameter, MASTER)
    return place[0], flat.detach()[: place[1]]


def gradient_slice(engine: StatefulEngine, parameter: nn.Parameter) -> tuple[int, Tensor] | None:
    """(start, live gradient, of any shape) of this rank's part, between the last backward and the update.

    ``None`` where it holds nothing of it, or where no loss reached the parameter. Not for offloaded optimizers.
    """
    place = _place(engine, parameter)
    if engine.plan.trains_weights:
        return None if parameter.grad is None or place is None else (place[0], parameter.grad)
    if place is None:
        return None
    start, length = place
    if is_partitioned(parameter):
        flat, _ = engine.zero_optimizer._get_fp32_grad_state_partition(parameter, False)
        return start, flat[:length]
    if isinstance(engine.zero_optimizer, MasterWeights):
        return start, engine.zero_optimizer.gradient_of(parameter)
    p: Any = parameter
    gradient = p._hp_mapping.get_lp_grad_fragment(p._index_in_param_group)
    # DeepSpeed's optimizer for bf16 has whole gradients on every rank, the others pieces
    own = int(p._hp_mapping.lp_fragment_address.start)
    return start, gradient if gradient.numel() == length else gradient.view(-1)[own : own + length]


# --------------------------------------------------------------------------------------------------- DeepSpeed's insides


def _keeps_masters(engine: StatefulEngine) -> bool:
    """Return whether the trained weights are not those of ``model/``: in half precision, or where those are averages."""
    return engine.plan.dtype != "fp32" or isinstance(engine.inner_optimizer, Averaging)


def _place(engine: StatefulEngine, parameter: nn.Parameter) -> tuple[int, int] | None:
    """Return (start, length) of this rank's slice, or ``None``. Rows that expert ranks divide begin where they do in the whole."""
    index, _ = part_of(parameter)
    if engine.plan.zero_stage == 0:
        return index * parameter.numel(), parameter.numel()
    if is_partitioned(parameter):
        p: Any = parameter
        share = int(p.ds_tensor.ds_numel)
        start = share * dist.get_rank(p.ds_process_group)
        length = max(0, min(share, int(p.ds_numel) - start))  # the last share is padded
        return (index * int(p.ds_numel) + start, length) if length else None
    mapping = parameter._hp_mapping  # type: ignore[attr-defined]
    if mapping is None:
        return None
    start = index * parameter.numel() + int(mapping.lp_fragment_address.start)
    return start, int(mapping.lp_fragment_address.numel)


def _keys(engine: StatefulEngine, parameter: nn.Parameter) -> list[str]:
    own = [MASTER] if _keeps_masters(engine) else []
    if engine.plan.zero_stage == 0:
        state = engine.inner_optimizer.state[engine.optimizer_tensor(parameter)]
        alike = [key for key, value in state.items() if isinstance(value, Tensor) and value.shape == parameter.shape]
        return own + alike
    p: Any = parameter
    if not is_partitioned(parameter):
        return own + list(p._hp_mapping.get_optim_state_keys())
    zero = engine.zero_optimizer
    flat = zero.fp32_partitioned_groups_flat[zero.grad_position[zero.get_param_id(p)][0]]
    state = engine.inner_optimizer.state[flat]
    return own + [key for key, value in state.items() if isinstance(value, Tensor) and value.dim() > 0]


def _unlike(engine: StatefulEngine, parameter: nn.Parameter) -> dict[str, Tensor]:
    """State of a whole parameter that has another shape, such as a sum of each row."""
    if engine.plan.zero_stage > 0:
        return {}
    state = engine.inner_optimizer.state[engine.optimizer_tensor(parameter)]
    for key, value in state.items():
        if not isinstance(value, Tensor | int | float) and value is not None:
            raise CheckpointError(
                f"{type(engine.inner_optimizer).__name__} keeps {key!r}, a {type(value).__name__}, in its state, and a checkpoint holds"
                " tensors and numbers; use another optimizer, or ask its author to keep tensors"
            )
    return {
        key: value
        for key, value in state.items()
        if isinstance(value, Tensor) and value.dim() > 0 and value.shape != parameter.shape
    }


def _view(engine: StatefulEngine, parameter: nn.Parameter, key: str) -> Tensor:
    """The live tensor of this rank's slice, flat."""
    if engine.plan.zero_stage == 0:
        trained = engine.optimizer_tensor(parameter)
        whole: Tensor = trained.detach() if key == MASTER else engine.inner_optimizer.state[trained][key]
        return whole.view(-1)
    state_key = None if key == MASTER else key
    if is_partitioned(parameter):
        view, _ = engine.zero_optimizer._get_fp32_opt_state_partition(parameter, False, optim_state_key=state_key)
        return view  # type: ignore[no-any-return]
    mapping = parameter._hp_mapping  # type: ignore[attr-defined]
    view = mapping.hp_fragment if state_key is None else mapping.optim_fragment[state_key]
    return view.view(-1)  # type: ignore[no-any-return]


def _create_state(engine: StatefulEngine, keys: Sequence[Sequence[str]], numbers: dict[str, Any]) -> None:
    """The state that the optimizer would make in its first step; ``keys`` are those of each group."""
    inner = engine.inner_optimizer
    for number, group in enumerate(inner.param_groups):
        for parameter in flat_parameters(engine, number):
            zeros = {key: torch.zeros_like(parameter) for key in keys[number] if key != MASTER}
            inner.state[parameter] = {**_numbers_of(title_of(group, number), numbers), **zeros}
    link_state(engine)


def _numbers_of(title: str, numbers: dict[str, Any]) -> dict[str, Any]:
    """The scalars of a group as optimizers keep them; checkpoints before there were groups have one set for all."""
    grouped = bool(numbers) and all(isinstance(each, dict) for each in numbers.values())
    # A group that was not there, such as that of a pipeline stage which trains nothing, is as far as any other.
    return _as_kept(numbers.get(title, next(iter(numbers.values()))) if grouped else numbers)


def _as_kept(own: Mapping[str, Any]) -> dict[str, Any]:
    wide = {"step": torch.float64} if own.get("step", 0) > 2**24 else {}  # beyond, float32 lacks every second count
    return {key: n if isinstance(n, int) else torch.tensor(n, dtype=wide.get(key)) for key, n in own.items()}


def _restore_whole(engine: StatefulEngine, saved: SavedOptimizer, numbers: dict[str, Any]) -> None:
    inner = engine.inner_optimizer
    names = names_of_optimizer_tensors(engine)
    for number, group in enumerate(inner.param_groups):
        for parameter in group["params"]:
            flat, others = saved.tensors_of(names[parameter])
            shaped = {key: _own_of_flat(parameter, value).view_as(parameter) for key, value in flat.items()}
            if (trained := shaped.pop(MASTER, None)) is not None:
                parameter.copy_(trained)
            own = saved.own_scalars.get(names[parameter])
            scalar = _numbers_of(title_of(group, number), numbers) if own is None else _as_kept(own)
            inner.state[parameter] = scalar | {
                key: value.to(parameter.device) for key, value in (shaped | others).items()
            }


def _own_of_flat(parameter: Tensor, value: Tensor) -> Tensor:
    """Return what this rank has of a flat value of the whole, of which expert ranks have some rows each."""
    index, parts = part_of(parameter)
    size = parameter.numel()
    return value[index * size : (index + 1) * size] if parts > 1 and value.shape == (parts * size,) else value


def link_state(engine: StatefulEngine) -> None:
    """Connect parameters with their state at stages 1 and 2.

    DeepSpeed does so once, after the step of the first parameter group, when the other groups have no state yet.
    """
    wrapper = engine.zero_optimizer
    if engine.plan.zero_stage > 0 and hasattr(wrapper, "_lazy_init_hp_params_optimizer_state"):
        wrapper._hp_optimizer_states_linked = False
        wrapper._lazy_init_hp_params_optimizer_state()


def title_of(group: dict[str, Any], number: int) -> str:
    """Return the name by which other layouts know a group: where expert ranks divide, DeepSpeed has one of its own in ``name``."""
    return str(group.get("title") or group.get("name", number))


def flat_parameters(engine: StatefulEngine, number: int) -> list[Tensor]:
    """Return the tensors that the optimizer sees of a group: under ZeRO flat pieces, at stage 3 perhaps several."""
    if engine.plan.zero_stage < 3:
        return list(engine.inner_optimizer.param_groups[number]["params"])
    wrapper = engine.zero_optimizer
    groups = wrapper.sub_group_to_group_id
    return [flat for piece, flat in enumerate(wrapper.fp32_partitioned_groups_flat) if groups[piece] == number]
