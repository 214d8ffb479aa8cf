"""What came of a run. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    output: Path | None
    steps: int
    first_loss: float | None
    last_loss: float | None
    eval_loss: float | None
    seconds: float
    stopped: str = ""
    """What ended the run before its last step (``SIGTERM``, ``train.max_minutes=30``); it then goes on with ``resume``."""
