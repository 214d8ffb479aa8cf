"""The processes of a run: who this one is, how they meet, and what they say to one another."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from mt_core.errors import ConfigError, Fault
from mt_train.config.ranks import ranks
from mt_train.engine.deepspeed_import import import_deepspeed
from mt_train.engine.rendezvous import join_processes, network_interface


@dataclass(frozen=True)
class Process:
    """One process of a run."""

    rank: int
    world: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """The one that writes the shared files and speaks to the user."""
        return self.rank == 0

    @classmethod
    def from_environment(cls) -> Process:
        """Build from what the launcher says (``config/ranks.py``); a single process without one."""
        said = ranks()
        rank, world, local_rank = said.rank, said.world, said.local_rank
        if not torch.cuda.is_available():
            return cls(rank, world, local_rank, torch.device("cpu"))
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                [
                    Fault(
                        key="nproc-per-node",
                        problem=f"local rank {local_rank} has no GPU: this machine shows {torch.cuda.device_count()}.",
                        fix="Start at most one process per GPU, or hide the GPUs with CUDA_VISIBLE_DEVICES= to run on CPUs.",
                    )
                ]
            )
        torch.cuda.set_device(local_rank)
        return cls(rank, world, local_rank, torch.device("cuda", local_rank))


@contextlib.contextmanager
def join_group(process: Process, timeout_seconds: int) -> Iterator[ModuleType]:
    """DeepSpeed, with the process group of this run up; taken down again at the end."""
    if process.device.type == "cpu":
        keep_freed_memory()
    deepspeed = import_deepspeed(process.device)
    backend = "nccl" if process.device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_seconds)
    hook = sys.excepthook  # torch puts one of its own around it, and leaves it there
    # DeepSpeed refuses to start without LOCAL_RANK.
    with _environment(LOCAL_RANK=str(process.local_rank), GLOO_SOCKET_IFNAME=network_interface(process.world)):
        join_processes(backend, timeout, process.rank, process.world)
        try:
            deepspeed.init_distributed(dist_backend=backend, timeout=timeout, verbose=False)
            with warnings.catch_warnings():
                # DeepSpeed calls collectives by names that torch is about to give up; no user can act on that.
                warnings.filterwarnings("ignore", message=".*is deprecated. Please use", category=FutureWarning)
                yield deepspeed
        finally:
            _forget(deepspeed)
            dist.destroy_process_group()
            sys.excepthook = hook


@contextlib.contextmanager
def _environment(**wanted: str) -> Iterator[None]:
    """Set what is not set and not empty here, and take it away again."""
    added = {name: value for name, value in wanted.items() if value and name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def keep_freed_memory() -> bool:
    """Let malloc hand the tensors of one step to the next, without a way through the kernel; True where that is possible.

    glibc maps each large tensor anew and returns it when it is freed, so a step on a CPU spends its time on page faults:
    9 % of the processor time of the benchmark's (docs/log.md). The setting is the process's own and changes no number.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all(libc.mallopt(option, value) for option, value in _MALLOPT.items())


_MALLOPT = {-3: 1 << 30, -1: 2**31 - 1}
"""``M_MMAP_THRESHOLD`` and ``M_TRIM_THRESHOLD`` of malloc.h, in bytes."""


def _forget(deepspeed: ModuleType) -> None:
    """DeepSpeed keeps its backend and groups in globals; a second run in this process must not find them."""
    from deepspeed.utils import groups

    deepspeed.comm.comm.cdb = None
    groups.mpu = None
    for known in (groups._EXPERT_PARALLEL_GROUP, groups._EXPERT_DATA_PARALLEL_GROUP):
        known.clear()
    for name in ("_WORLD_GROUP", "_CLONE_WORLD_GROUP", "_ZERO_PARAM_INTRA_PARALLEL_GROUP"):
        if hasattr(groups, name):
            setattr(groups, name, None)


@contextlib.contextmanager
def make_own_groups_alone() -> Iterator[None]:
    """Let each rank make only the groups that it is in, whatever DeepSpeed asks all ranks for.

    Its grid of a pipeline makes all groups on all ranks, each with a word from every rank to one store: with stages of 1,024 ranks
    18,449 of them at 16,384 ranks, of which a rank is in five.
    """
    make = dist.new_group

    def make_own(ranks: Iterable[int] | None = None, **options: Any) -> Any:
        chosen = None if ranks is None else list(ranks)
        if chosen is None or len(chosen) == dist.get_world_size():
            return make(chosen, **options)
        if dist.get_rank() not in chosen:
            return dist.GroupMember.NON_GROUP_MEMBER
        return make(chosen, **{**options, "use_local_synchronization": True})

    dist.new_group = make_own  # type: ignore[assignment]
    try:
        yield
    finally:
        dist.new_group = make


def all_reduce(values: torch.Tensor) -> torch.Tensor:
    """Sum over all ranks, in place."""
    if dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values


def _device(group: dist.ProcessGroup | None = None) -> torch.device:
    """Return where the tensors of a group's collectives have to be."""
    on_gpu = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def ranks_where(here: bool) -> list[int]:
    """The ranks that say True, on every rank."""
    if dist.get_world_size() == 1:
        return [0] if here else []
    said = torch.zeros(dist.get_world_size(), dtype=torch.int32, device=_device())
    said[dist.get_rank()] = int(here)
    dist.all_reduce(said)
    return said.nonzero().flatten().tolist()


def agree(ok: bool, group: dist.ProcessGroup | None = None) -> bool:
    """True on every rank when all ranks say so."""
    if dist.get_world_size() == 1:
        return ok
    flag = torch.tensor(int(ok), device=_device(group))
    dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=group)
    return bool(flag.item())


def smallest(number: int) -> int:
    """The smallest number of all ranks, on every rank."""
    value = torch.tensor(number, device=_device())
    if dist.get_world_size() > 1:
        dist.all_reduce(value, op=dist.ReduceOp.MIN)
    return int(value.item())


def largest(number: float) -> float:
    """The largest number of all ranks, on every rank."""
    value = torch.tensor(number, dtype=torch.float64, device=_device())
    if dist.get_world_size() > 1:
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value.item())


def agree_beside(process: Process, timeout_seconds: int) -> Callable[[bool], bool]:
    """``agree`` over connections of its own, for a thread beside training; every rank must call this."""
    if process.world == 1:
        return bool
    return partial(agree, group=dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds)))


def barrier() -> None:
    """Wait for every rank."""
    if dist.get_world_size() > 1:
        agree(True)  # an all-reduce: a plain barrier on gloo has its own, longer timeout


def share_text(text: str, *, source: int = 0) -> str:
    """The text of one rank, on every rank."""
    if dist.get_world_size() == 1:
        return text
    device = _device()
    content = torch.from_numpy(np.array(bytearray(text.encode()), np.uint8)).to(device)
    size = torch.tensor(len(content), device=device)
    dist.broadcast(size, source)
    if dist.get_rank() != source:
        content = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    dist.broadcast(content, source)
    return content.cpu().numpy().tobytes().decode()


def gather_texts(text: str) -> list[str]:
    """The texts of all ranks, in their order, on every rank; by two collectives, however many they are."""
    if (world := dist.get_world_size()) == 1:
        return [text]
    content = torch.from_numpy(np.array(bytearray(text.encode()), np.uint8)).to(_device())
    sizes = torch.zeros(world, dtype=torch.int64, device=_device())
    sizes[dist.get_rank()] = len(content)
    dist.all_reduce(sizes)
    bounds = [0, *sizes.cumsum(0).tolist()]
    whole = torch.zeros(bounds[-1], dtype=torch.uint8, device=_device())
    whole[bounds[dist.get_rank()] : bounds[dist.get_rank() + 1]] = content
    if len(whole):
        dist.all_reduce(whole)
    found = whole.cpu().numpy().tobytes()
    return [found[start:end].decode() for start, end in pairwise(bounds)]
