"""A torch profile of a few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

WAIT, WARMUP, ACTIVE = 1, 1, 3


@contextmanager
def profile_steps(folder: Path | None, *, rank: int) -> Iterator[Callable[[], None]]:
    """Gives a function to call after each step; writes ``trace-rank-N.json`` (Chrome's format) after five steps."""
    if folder is None:
        yield lambda: None
        return
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    trace = folder / f"trace-rank-{rank}.json"
    with profile(
        activities=activities,
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda result: result.export_chrome_trace(str(trace)),
        record_shapes=True,
    ) as profiler:
        yield profiler.step
