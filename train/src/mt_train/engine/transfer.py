"""Batches on their way to the device: from pinned memory, on a stream of their own, one ahead of the batch that is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from mt_core.nn import Batch


class Transfer:
    """Copies batches to one device. To a GPU the next batch travels while the present one is computed.

    A copy from memory that is not pinned would wait for the device, and one on the stream that computes would wait its turn.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        """``cuda`` has the functions of ``torch.cuda``; tests give another."""
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device) if device.type == "cuda" else None

    def copy_ahead(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield each batch on the device."""
        if self._stream is None:
            yield from (batch.to(self._device) for batch in batches)
            return
        coming: tuple[Batch, Any] | None = None
        for batch in batches:
            present, coming = coming, self._begin(batch)
            if present is not None:
                yield self._finish(*present)
        if coming is not None:
            yield self._finish(*coming)

    def _begin(self, batch: Batch) -> tuple[Batch, Any]:
        """Return the batch on the device, and the event of its arrival."""
        with self._cuda.stream(self._stream):
            moved = batch.map(torch.Tensor.pin_memory).to(self._device)
            return moved, self._cuda.current_stream(self._device).record_event()

    def _finish(self, batch: Batch, arrived: Any) -> Batch:
        """Let the stream that computes wait for a copy, and keep the copy's memory until it is done with it."""
        computing = self._cuda.current_stream(self._device)
        computing.wait_event(arrived)

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(computing)
            return tensor

        return batch.map(keep)
