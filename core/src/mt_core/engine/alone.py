"""One rank computes as if the others answered, without them: its tensors are as large as in the run, their values mean nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import FakeWork
from torch.utils._python_dispatch import TorchDispatchMode


class Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every collective is over at once and leaves its tensors as they are: no rank waits for another.

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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: on a GPU, in one of its libraries, or on a CPU, where torch has no class for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


_TEXTS = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "std::bad_alloc")
