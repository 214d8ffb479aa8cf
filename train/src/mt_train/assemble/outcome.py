"""The outcome of a run. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """The result of a run, as ``train`` returns it. Losses are ``None`` on ranks other than 0."""

    output: Path | None
    """The run's folder; ``None`` where no file was written."""
    steps: int
    """Optimizer steps so far, those before a resume among them."""
    first_loss: float | None
    """Training loss of the first step of this call (mean nats per trained token of the step's rows, over all ranks); ``None``
    where it made no step."""
    last_loss: float | None
    """Training loss of its last step, likewise."""
    eval_loss: float | None
    """Loss on the held-out rows at its last evaluation (mean nats per trained token); ``None`` where there was none."""
    seconds: float
    """Wall-clock time from the first step to the last, evaluations and saves included (seconds)."""
    stopped: str = ""
    """Why the run ended before its last step (``SIGTERM``, ``train.max_minutes=30``), to go on with ``resume``; empty where it is
    complete, also where a callback ended it."""
