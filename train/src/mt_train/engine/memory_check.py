"""Check that there is room for a model at all, before anything takes memory for it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from mt_core.errors import ConfigError, Fault
from mt_core.nn import TrainModel
from mt_train.engine.memory_probe import available_memory
from mt_train.engine.meta import on_meta
from mt_train.engine.plan import Plan
from mt_train.engine.precision import DTYPES
from mt_train.engine.processes import Process


def refuse_beyond_memory(make: Callable[[], TrainModel], *, plan: Plan, process: Process) -> None:
    """Raise ``ConfigError`` where a rank's weights alone need more than the memory of its device.

    Linux promises memory that it has not got, and ends the process when it is used. Gradients and the optimizer's state come on top:
    ``--dry-run`` adds them up.
    """
    device = torch.device("cpu") if plan.offload == "parameters" else process.device
    room, numbers = _available_bytes(device), _count_numbers(make)
    if room is None or numbers is None:
        return
    ranks = plan.sharing_ranks if plan.zero_stage == 3 else plan.pipeline
    needed = numbers * DTYPES[plan.dtype].itemsize // ranks
    if needed > room:
        raise ConfigError(
            [
                Fault(
                    key="model",
                    problem=f"{numbers:,} parameters are {needed / 1e9:,.1f} GB of weights a rank, and {device} has"
                    f" {room / 1e9:,.1f} GB.",
                    fix="Choose a smaller size, or train on more ranks with --parallel.zero-stage 3; --dry-run shows what a rank holds.",
                )
            ]
        )


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
