"""Prints which allocations fit a trial's part of 256 MiB, and whether the limit is gone after it."""

from __future__ import annotations

import json

import torch

from mt_train.engine import memory_probe
from mt_train.engine.processes import Process

MIB = 2**20


def fits(mebibytes: int) -> bool:
    return memory_probe.fits(lambda: torch.empty(mebibytes * MIB, dtype=torch.uint8))


if __name__ == "__main__":
    memory_probe.available_memory = lambda: 256 * MIB
    with memory_probe.reserve_memory(Process(0, 1, 0, torch.device("cpu"))):
        inside = {"small": fits(32), "large": fits(2048)}
    print(json.dumps({**inside, "large, afterwards": fits(2048)}))
