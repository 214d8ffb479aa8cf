"""Files and services that the figures of a run go to: opened on rank 0, each cut back to where a resumed run goes on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from mt_core.events import TrackedRun
from mt_core.protocols import NATS_PER_TOKEN
from mt_core.tracking.logs import notice
from mt_train.assemble.parts import Parts
from mt_train.config.secrets import redact_config
from mt_train.loop import Progress
from mt_train.tracking.console import ProgressLines
from mt_train.tracking.metrics import MetricsFile, spans
from mt_train.tracking.progress_bar import open_progress_bar
from mt_train.tracking.recorder import Recorder
from mt_train.tracking.tensorboard import TensorBoardWriter
from mt_train.tracking.trackers import GuardedTracker


class StepFile(Protocol):
    """A file with a line for some steps."""

    def cut_back(self, *, trained: int, evaluated: int) -> None:
        """Drop what comes after the step from which the run goes on: what it learned from after ``trained``, what an evaluation found
        after ``evaluated``, which is a step less where the evaluation of that step is owed."""
        ...


def open_recorder(
    parts: Parts,
    output: Path | None,
    progress: Progress,
    written: Iterable[StepFile],
    *,
    total_steps: int,
    is_main: bool,
    checkpoint: Path | None = None,
    loss_unit: str = NATS_PER_TOKEN,
) -> Recorder:
    """Every outlet that the run has; none on other ranks. Says where a run goes on that has a ``checkpoint``.

    ``written`` are files that others write, and that are cut back with the records.

    Raises ``MtError`` where a tracker says what it lacks.
    """
    if not is_main:
        return Recorder(None, None, None, None)
    every = parts.config.log.every_steps
    lines = ProgressLines(
        parts.task_print(),
        total_steps=total_steps,
        every_steps=every,
        first_step=progress.step,
        name=parts.config.task_print.name,
        bar=open_progress_bar(total_steps=total_steps, first_step=progress.step),
    )
    recorded = progress.step if progress.pending is None else progress.step - 1
    trackers = _trackers(parts, output, recorded)
    if output is None:
        return Recorder(None, None, lines, None, every, trackers)
    metrics = MetricsFile(output / "metrics.jsonl")
    again = metrics.cut_back(recorded)
    if checkpoint is not None:
        notice(_describe_start(checkpoint, progress, total_steps, again))
    for file in written:
        file.cut_back(trained=progress.step, evaluated=recorded)
    board = TensorBoardWriter(output / "tensorboard", purge_step=recorded + 1 if progress.step else None)
    return Recorder(metrics, board, lines, output, every, trackers, loss_unit=loss_unit)


def _describe_start(checkpoint: Path, progress: Progress, total_steps: int, again: list[int]) -> str:
    """Say from where a run goes on, and which steps it had come to after that: their figures were cut off."""
    text = f"notice: the run goes on from {checkpoint}, after step {progress.step:,} of {total_steps:,}"
    if progress.pending is not None:
        return f"{text}, with the evaluation of that step"
    which = f"step{'s' * (len(again) != 1)} {spans(again)}"
    return f"{text}; {which}, whose figures were there already, will be computed anew" if again else text


def _trackers(parts: Parts, output: Path | None, first_step: int) -> list[GuardedTracker]:
    name = output.name if output is not None else parts.stem
    run = TrackedRun(name=name, output=output, config=redact_config(parts.config.as_raw()), first_step=first_step)
    return [GuardedTracker(name, make) for name, make in parts.trackers(run).items()]
