"""Random generators of this process: seeded per rank, saved and restored exactly, without pickle."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int, rank: int) -> None:
    """Seed Python, numpy and torch. Ranks differ, so that dropout does; weights come from their own generators."""
    mixed = int.from_bytes(hashlib.sha256(f"{seed}/{rank}".encode()).digest()[:4], "little")
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore every random generator afterwards: a run leaves no trace in the process that called it."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    tensors, numbers = random_tensors(device), random_numbers()
    try:
        yield
    finally:
        restore_random(tensors, numbers, device)


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """The generators' states as tensors, for safetensors."""
    states = {"rng::torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["rng::cuda"] = torch.cuda.get_rng_state(device)
    state: Any = np.random.get_state(legacy=True)
    states["rng::numpy"] = torch.from_numpy(np.asarray(state[1]).astype(np.int64))
    return states


def random_numbers() -> dict[str, Any]:
    """The rest of the states, as JSON."""
    state: Any = np.random.get_state(legacy=True)
    kind, _, position, has_gauss, gauss = state
    version, internal, following = random.getstate()
    return {
        "numpy": [kind, int(position), int(has_gauss), float(gauss)],
        "python": [version, list(internal), following],
    }


def restore_random(tensors: dict[str, Tensor], numbers: dict[str, Any], device: torch.device) -> None:
    """Put every generator back to where it was."""
    torch.set_rng_state(tensors["rng::torch"])
    if device.type == "cuda" and "rng::cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng::cuda"], device)
    kind, position, has_gauss, gauss = numbers["numpy"]
    key = tensors["rng::numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, key, position, has_gauss, gauss))
    version, internal, following = numbers["python"]
    random.setstate((version, tuple(internal), following))
