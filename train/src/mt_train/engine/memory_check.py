"""Check that there is room for a model at all, before anything takes memory for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from mt_core.errors import ConfigError, Fault
from mt_core.groups import is_of_media
from mt_core.nn import LayerSpec, TrainModel
from mt_train.engine.memory_probe import available_memory
from mt_train.engine.meta import on_meta
from mt_train.engine.plan import Plan
from mt_train.engine.precision import DTYPES
from mt_train.engine.processes import Process
from mt_train.engine.stages import Cut, cut


def refuse_beyond_memory(
    make: Callable[[], TrainModel], *, plan: Plan, process: Process, offered: Sequence[LayerSpec] | None = None
) -> None:
    """Raise ``ConfigError`` where a rank's weights alone need more than the memory of its device; in a pipeline those of its largest stage,
    of the layers that a plugin has ``offered``, if it has.

    Linux promises memory that it has not got, and ends the process when it is used. Gradients and the optimizer's state come on top:
    ``--dry-run`` adds them up.
    """
    device = torch.device("cpu") if plan.offload == "parameters" else process.device
    room = _available_bytes(device)
    if room is None:
        return
    if plan.pipeline > 1:
        count, where = _largest_stage(cut(make, offered, plan.pipeline))
        numbers = count
    else:
        whole = _count_numbers(make)
        if whole is None:
            return
        count, where = whole, ""
        numbers = whole // (plan.sharing_ranks if plan.zero_stage == 3 else 1)
    needed = numbers * DTYPES[plan.dtype].itemsize
    if needed > room:
        problem = f"{count:,} parameters{where} are {needed / 1e9:,.1f} GB of weights a rank, and {device} has {room / 1e9:,.1f} GB."
        fix = "Choose a smaller size, or train on more ranks with --parallel.zero-stage 3; --dry-run shows what a rank holds."
        raise ConfigError([Fault(key="model", problem=problem, fix=fix)])


def _largest_stage(parts: Cut) -> tuple[int, str]:
    """Return the number of parameters of the stage with the most, and which that is. Encoders of media are whole on the first."""
    numbers = {name: parameter.numel() for name, parameter in parts.model.named_parameters()}
    stages = len(parts.bounds) - 1
    sizes = [sum(numbers[name] for name, holders in parts.holders.items() if n in holders) for n in range(stages)]
    most = max(range(stages), key=sizes.__getitem__)
    media = sum(number for name, number in numbers.items() if is_of_media(name)) if most == 0 else 0
    encoders = f" ({media:,} of encoders, which no cut divides)" if media else ""
    return sizes[most], f" of stage {most} of {stages}{encoders}"


def _count_numbers(make: Callable[[], TrainModel]) -> int | None:
    """Parameters of the model; ``None`` for one that looks at values while it is built, of which there are none here."""
    try:
        with on_meta():
            model = make()
    except (RuntimeError, NotImplementedError):
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def _available_bytes(device: torch.device) -> int | None:
    """Bytes of the device; ``None`` where that cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return available_memory() if sys.platform == "linux" else None
