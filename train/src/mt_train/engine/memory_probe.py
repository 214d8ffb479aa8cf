"""A step on trial: of one rank alone, with a part of the memory taken away, and whether it was out of memory."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import FakeWork
from torch.utils._python_dispatch import TorchDispatchMode

from mt_train.engine.processes import Process

KEPT_FREE = 0.05
"""Share of a device's memory that a trial does without: a long run falls apart into pieces, and callbacks keep some."""


class LocalCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every collective is over at once and leaves its tensors as they are: they are as large as in the run, their values
    mean nothing, and no rank waits for another.

    The stand-in for a collective's handle is torch's own, which its estimates of memory use.
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        work = FakeWork().boxed()
        returns = len(func._schema.returns)
        return (args[0], work)[2 - returns :] if returns > 1 else work if returns else None


def fits(attempt: Callable[[], object]) -> bool:
    """False when it was out of memory; raises what else went wrong."""
    try:
        attempt()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed: on a GPU, in one of its libraries, or on a CPU, where torch has no class for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


_TEXTS = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "std::bad_alloc")


@contextlib.contextmanager
def reserve_memory(process: Process) -> Iterator[None]:
    """A part of a GPU's memory is taken inside. On a CPU allocations fail where Linux would later kill the process."""
    if process.device.type == "cuda":
        size = torch.cuda.get_device_properties(process.device).total_memory
        taken = torch.empty(int(size * KEPT_FREE), dtype=torch.uint8, device=process.device)
        yield
        del taken
        return
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = _kibibytes(Path("/proc/self/status"), "VmData")
    most = used + int(available_memory() / process.world * (1 - KEPT_FREE))
    resource.setrlimit(resource.RLIMIT_DATA, (most if before[1] < 0 else min(most, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def available_memory() -> int:
    """Bytes that this machine, or the container that this process runs in, can still give."""
    free = _kibibytes(Path("/proc/meminfo"), "MemAvailable")
    limit, used = (Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory.current"))
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        free = min(free, int(most) - int(used.read_text()))
    return max(0, free)


def _kibibytes(path: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def release_memory(process: Process) -> None:
    """Give memory that nobody refers to any more back to the device."""
    gc.collect()
    if process.device.type == "cuda":
        torch.cuda.empty_cache()
