"""The machines that ``--dry-run`` plans for, from the options of the command line. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mt_core.errors import UsageError, show_value
from mt_train.planning.gpus import find_gpu
from mt_train.planning.hardware import Hardware


def read_hardware(flags: Mapping[str, Any], world: int) -> Hardware | None:
    """Return the machines that are named; ``None`` without ``--gpu``. Raises ``UsageError`` for what is missing or cannot be."""
    if "gpu" not in flags:
        if given := [name for name in ("plan", "network", "host_memory") if name in flags]:
            option = given[0].replace("_", "-")
            raise UsageError(f"--{option} needs to know the GPUs: add --gpu NAME, e.g. --gpu h100-80g")
        return None
    gpu, nodes = find_gpu(flags["gpu"]), int(flags.get("nnodes", "1"))
    network = (
        _positive("--network", flags["network"], "gigabits a second from each GPU") if "network" in flags else None
    )
    if network is None and nodes > 1 and "plan" in flags:
        raise UsageError(
            "--plan over several nodes needs their network: add --network GBIT, gigabits a second from each GPU to other nodes"
            " (400 where each GPU has a card of 400; 100 / 8 where eight share one of 100)"
        )
    host = _positive("--host-memory", flags["host_memory"], "GiB of a node") if "host_memory" in flags else None
    return Hardware(
        gpu=gpu,
        per_node=max(1, world // nodes),
        network=None if network is None else network / 8 * 1e9,
        host_memory=None if host is None else round(host * 2**30),
    )


def _positive(option: str, text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{option} takes a number above 0 ({what}), got {show_value(text)}")
    return value
