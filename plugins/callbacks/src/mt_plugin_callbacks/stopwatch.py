"""A stopwatch for spans of the processor or of a GPU."""

from __future__ import annotations

import time
from functools import partial
from typing import Any


class Stopwatch:
    """Adds up spans, on a GPU by events of its stream, which nothing waits for until the sum is asked for."""

    def __init__(self, device: Any) -> None:
        import torch

        self._event = partial(torch.cuda.Event, enable_timing=True) if device.type == "cuda" else None
        self._spans: list[tuple[Any, Any]] = []
        self._open: Any = None
        self._sum = 0.0
        self.listens = False

    def start(self) -> None:
        """Begin a span; one that was begun and not ended is forgotten."""
        if self.listens:
            self._open = self._now()

    def stop(self) -> None:
        """End the span that was begun, if one was."""
        if not self.listens or self._open is None:
            return
        ended = self._now()
        if self._event is None:
            self._sum += ended - self._open
        else:
            self._spans.append((self._open, ended))
        self._open = None

    def seconds(self) -> float:
        """Return the sum of all spans."""
        if self._spans:
            self._spans[-1][1].synchronize()
        milliseconds: float = sum(begun.elapsed_time(ended) for begun, ended in self._spans)
        return self._sum + milliseconds / 1000

    def reset(self) -> None:
        """Begin anew."""
        self._spans, self._open, self._sum = [], None, 0.0

    def _now(self) -> Any:
        if self._event is None:
            return time.perf_counter()
        event = self._event()
        event.record()
        return event
