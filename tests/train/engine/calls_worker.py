"""Says which calls of torch.distributed a rank's texts and its group take. Run by test_processes.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from mt_train.engine.processes import Process, gather_texts
from mt_train.engine.sequence import sequence_group


def count(calls: list[str], name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    calls.append(name)
    return function(*given, **named)


def main(rank: int, world: int, store: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    calls: list[str] = []
    for name in ("all_reduce", "broadcast", "all_gather", "new_group"):
        setattr(dist, name, partial(count, calls, name, getattr(dist, name)))
    texts = [gather_texts("" if rank == 1 else f"é{rank}" * rank), gather_texts("")]
    told, calls[:] = list(calls), []
    group = sequence_group(Process(rank, world, rank, torch.device("cpu")), 2)
    value = torch.tensor([10.0**rank])
    made = list(calls)
    dist.all_reduce(value, group=group)
    print(json.dumps([texts, told, made, value.item()]))
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
