"""Where the figures of a run go: opened on rank 0, each cut back to where a resumed run goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mt_core.assemble.samples import SampleWriter
from mt_core.events import TrackedRun
from mt_core.loop import Progress
from mt_core.plugins.resolve import Resolved
from mt_core.tracking.console import ProgressLines
from mt_core.tracking.metrics import MetricsFile
from mt_core.tracking.recorder import Recorder
from mt_core.tracking.tensorboard import TensorBoardWriter
from mt_core.tracking.trackers import GuardedTracker


def open_recorder(
    resolved: Resolved,
    output: Path | None,
    progress: Progress,
    samples: SampleWriter | None,
    *,
    total_steps: int,
    is_main: bool,
) -> Recorder:
    """Every outlet that the run has; none on other ranks. Raises ``MtError`` where a tracker says what it lacks."""
    if not is_main:
        return Recorder(None, None, None, None)
    every = resolved.config.log.every_steps
    lines = ProgressLines(
        resolved.build("task_print", resolved.config.task_print.options),
        total_steps=total_steps,
        every_steps=every,
        first_step=progress.step,
        name=resolved.config.task_print.name,
    )
    recorded = progress.step if progress.pending is None else progress.step - 1
    trackers = _trackers(resolved, output, recorded)
    if output is None:
        return Recorder(None, None, lines, None, every, trackers)
    metrics = MetricsFile(output / "metrics.jsonl")
    metrics.cut_back(recorded)
    if samples is not None:
        samples.cut_back(recorded)
    board = TensorBoardWriter(output / "tensorboard", purge_step=progress.step + 1 if progress.step else None)
    return Recorder(metrics, board, lines, output, every, trackers)


def _trackers(resolved: Resolved, output: Path | None, first_step: int) -> list[GuardedTracker]:
    name = output.name if output is not None else resolved.stem
    run = TrackedRun(name=name, output=output, config=resolved.config.as_raw(), first_step=first_step)
    return [
        GuardedTracker(each.name, partial(resolved.build, f"tracker:{each.name}", each.options, run=run))
        for each in resolved.config.trackers
    ]
