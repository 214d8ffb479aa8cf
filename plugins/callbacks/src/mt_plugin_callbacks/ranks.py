"""Figures of each rank, on all of them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_NAME_BYTES = 48
"""How much of a host's name is kept: ranks tell one another in a tensor of one size."""


def device_of(model: Any) -> Any:
    """Return where the tensors of collectives have to be."""
    return next(model.parameters()).device


def gathered_modules(block: Any) -> list[Any]:
    """Return the modules of a block for which ZeRO 3 gathers weights, each right before its forward."""
    return [module for module in block.modules() if next(module.parameters(recurse=False), None) is not None]


def gather_rows(row_F: Tensor, rank: int, world: int) -> Tensor:
    """(F,) of each rank -> (world, F) on every rank, by one all-reduce. Collective."""
    import torch.distributed as dist

    rows_RF = row_F.new_zeros((world, len(row_F)))
    rows_RF[rank] = row_F
    dist.all_reduce(rows_RF)
    return rows_RF


def gather_hosts(rank: int, world: int, device: Any) -> list[str]:
    """Return the names of the machines of all ranks. Collective."""
    import torch

    name = socket.gethostname().encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b" ")
    rows = gather_rows(torch.tensor(list(name), dtype=torch.int32, device=device), rank, world).tolist()
    return [bytes(row).decode(errors="replace").strip() for row in rows]
