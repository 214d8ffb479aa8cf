"""The learning rates that a run would have: a few for the console, all of them as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.errors import OutputError, UsageError
from mt_core.protocols import Schedule
from mt_train.assemble.parts import Parts

SHOWN = 49
"""Updates whose rate is on the console."""

DRAWN = 100_000
"""Most updates that are computed for a picture, evenly over the run."""


def sample_rates(schedule: Schedule, rate: float, steps: int) -> list[dict[str, Any]]:
    """The rate of the first update, of the last, and of others between, evenly."""
    last = steps - 1
    marks = sorted({round(last * part / (SHOWN - 1)) for part in range(SHOWN)})
    return [{"step": k + 1, "lr": rate * schedule(k)} for k in marks]


def picture_path(given: str) -> Path:
    """Return where a picture may go. Raises ``UsageError`` for a name that is no PNG's, ``OutputError`` for a folder that is not there."""
    path = Path(given)
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot writes a PNG, got {given!r}; give a name that ends in .png")
    if not path.parent.is_dir() or path.is_dir():
        raise OutputError(
            f"--plot cannot write {given}: {path.parent} is no folder; make it first, or give another one"
        )
    return path


def draw_rates(parts: Parts, about: Mapping[str, Any], path: Path) -> None:
    """A PNG of the planned rate of each parameter group over all steps of a plan. Raises ``OutputError``."""
    from mt_train.tracking.plot import plot_rates

    steps = about["steps"]
    schedule = parts.schedule(steps)
    updates = sorted({*range(0, steps, max(1, steps // DRAWN)), steps - 1})
    groups = {group["name"]: group["lr"] for group in about["groups"]}
    title = f"schedule {parts.config.schedule.name}, {steps:,} updates"
    try:
        plot_rates([k + 1 for k in updates], [schedule(k) for k in updates], groups, path, title)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
