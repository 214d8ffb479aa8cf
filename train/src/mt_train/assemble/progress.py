"""The progress of a run, as the manifest of a checkpoint keeps it: written and read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mt_core.errors import CheckpointError
from mt_core.protocols import StepRecord
from mt_train.checkpoint.completion import ENDED, callbacks_differ
from mt_train.checkpoint.manifest import MANIFEST
from mt_train.config.run import RunConfig
from mt_train.data.loader import Loader, Position
from mt_train.loop import Progress
from mt_train.tracking.metrics import without_nan


def progress_content(progress: Progress) -> dict[str, Any]:
    """Return what a manifest keeps of it beside the step."""
    return {
        "tokens": progress.tokens,
        "position": asdict(progress.position),
        "pending": without_nan(asdict(progress.pending)) if progress.pending else None,
        "skipped": progress.skipped,
        ENDED: progress.ended,
        "evaluated": progress.evaluated,
        "seconds": progress.seconds,
    }


def saved_progress(
    manifest: Mapping[str, Any], checkpoint: Path, config: RunConfig, loader: Loader, *, total_steps: int
) -> Progress:
    """Return the progress of a run that goes on with ``config``, for ``total_steps``.

    A callback's end of the run does not hold for more steps, or other callbacks. Raises ``CheckpointError`` for a position
    that its epoch does not have.
    """
    position = Position(**manifest["position"])
    if not loader.has(position):
        raise CheckpointError(
            f"{checkpoint / MANIFEST} is damaged: position is {manifest['position']}, and that epoch has no such row; use"
            " another checkpoint"
        )
    longer = total_steps > manifest["total_steps"] or callbacks_differ(manifest, config)
    pending = manifest.get("pending")
    return Progress(
        manifest["step"],
        manifest["tokens"],
        position,
        _record_of(pending) if pending else None,
        manifest.get("skipped", 0),
        manifest.get(ENDED, False) and not longer,
        manifest.get("evaluated", 0),
        manifest.get("seconds", 0.0),
    )


def _record_of(values: Mapping[str, Any]) -> StepRecord:
    # of a stream the epoch is unknown, where another null is a NaN that JSON has no word for
    known = {key: value for key, value in values.items() if key != "epoch" or value is not None}
    return StepRecord(**_with_nan(known))


def _with_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers, and tables of numbers, with NaN where JSON has null."""
    return {
        key: math.nan if value is None else _with_nan(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }
