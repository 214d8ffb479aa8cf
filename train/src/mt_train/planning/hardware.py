"""The machines that a run is planned for. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from mt_train.planning.gpus import Gpu


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Nodes of ``per_node`` GPUs. ``network``: bytes a second that each GPU sends to other nodes; ``host_memory``: bytes of a node.
    ``None`` where nobody has said it."""

    gpu: Gpu
    per_node: int
    network: float | None
    host_memory: int | None
