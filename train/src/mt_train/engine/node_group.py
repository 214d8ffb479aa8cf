"""The ranks of one machine, and what they give one another beside training.

A group of their own, over gloo, so that no collective of a thread can meet one of training: what is exchanged stays on the machine, and a
rank is connected with as many others as a machine has, however many a run has.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from mt_train.checkpoint.lock import Holder
from mt_train.engine.processes import Process, all_reduce

POLL_SECONDS = 0.005
"""Time between two questions whether the others have answered. A thread that waited inside torch could not be left behind at the end of
a run: it would come back into an interpreter that is gone."""


def node_identity() -> str:
    """Return what tells this machine from others: its host name, which two may have, and the start of its kernel."""
    this = Holder.this()
    return f"{this.host} {this.boot}"


def ranks_of_node(process: Process) -> list[int]:
    """Return the ranks that run on this rank's machine, this one among them. Collective: 8 bytes a rank."""
    own = int.from_bytes(hashlib.sha256(node_identity().encode()).digest()[:8]) >> 1
    identities = torch.zeros(process.world, dtype=torch.int64, device=process.device)
    identities[process.rank] = own
    return (all_reduce(identities) == own).nonzero().flatten().tolist()


def gather_beside(ranks: Sequence[int], timeout_seconds: int) -> Callable[[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """Return a function by which these ranks, in a thread of each, give one another their bytes: those of all, in their order.

    Each of them calls it, and this. It raises ``RuntimeError`` as a collective of training does, where one of them ends or does not
    answer in time.
    """
    timeout = timedelta(seconds=timeout_seconds)
    group = dist.new_group(list(ranks), backend="gloo", timeout=timeout, use_local_synchronization=True)

    def gather(content: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        sizes = [int(size) for size in _gather(torch.tensor([len(content)]), len(ranks), group)]
        own = torch.zeros(max(sizes), dtype=torch.uint8)  # gloo gathers tensors of one size
        own[: len(content)] = torch.from_numpy(content)
        found = _gather(own, len(ranks), group)
        return [each[:size].numpy() for each, size in zip(found, sizes, strict=True)]

    return gather


def _gather(own: torch.Tensor, count: int, group: dist.ProcessGroup) -> list[torch.Tensor]:
    found = [torch.empty_like(own) for _ in range(count)]
    work = dist.all_gather(found, own, group=group, async_op=True)
    while not work.is_completed():
        time.sleep(POLL_SECONDS)
    work.wait()  # raises what went wrong
    return found
