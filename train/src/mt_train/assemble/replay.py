"""Steps of a run that are computed again from one of its checkpoints, and compared with what it recorded: ``--replay STEPS``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from mt_core.errors import CheckpointError, UsageError, show_value
from mt_core.events import CallbackContext, Control
from mt_train.checkpoint.manifest import STEP_FOLDER
from mt_train.config.digits import parse_whole_number
from mt_train.tracking.metrics import MetricsFile, spans, without_nan

COMPARED = ("loss", "grad_norm", "lr", "tokens")


class Replay:
    """Compares each step with its record, bit for bit, and ends the run after the last or at the first that differs.

    It writes nothing: records of a run are those of its first time.
    """

    def __init__(self, checkpoint: Path, steps: int) -> None:
        """Raises ``UsageError`` where the run has recorded nothing behind the checkpoint."""
        name = STEP_FOLDER.fullmatch(checkpoint.name)
        assert name is not None, "a checkpoint was found by its name"
        self._from, self.run = int(name[1]), checkpoint.parent.parent
        recorded = MetricsFile(self.run / "metrics.jsonl").records()
        behind = islice((record for record in recorded if record["step"] > self._from), steps)
        self._records: dict[int, Mapping[str, Any]] = {record["step"]: record for record in behind}
        self._compared: list[int] = []
        self.difference = ""
        if not self._records:
            raise UsageError(
                f"--replay has nothing to compare with: {self.run} has no record behind step {self._from}; name an earlier checkpoint,"
                f" as --resume {checkpoint.parent}/step-NNNNNNNN (mt-checkpoint list {self.run})"
            )

    def on_step_end(self, context: CallbackContext) -> Control:
        """Compare a step; it is the same on all ranks, so that all stop."""
        assert context.record is not None, "a step that has ended has a record"
        if context.step <= self._from:  # the checkpoint's own, whose evaluation a signal had cut short
            return Control()
        self._compared.append(context.step)
        recorded, found = self._records.get(context.step, {}), without_nan(context.record.as_dict())
        differing = [name for name in COMPARED if recorded.get(name) != found.get(name)]
        if differing:
            listed = "; ".join(f"{name} {found.get(name)!r} (recorded {recorded.get(name)!r})" for name in differing)
            self.difference = f"step {context.step}: {listed}"
        return Control(stop=bool(differing) or context.step >= max(self._records))

    def describe(self) -> str:
        """Say what was found. Raises ``CheckpointError`` where a step differs."""
        if self.difference:
            raise CheckpointError(
                f"computed again from step {self._from}, {self.run} is not the same: {self.difference}. The same number of processes,"
                " machine and versions give the same bits (plugins.lock.json has those of the run); rows or files"
                " that were changed do not"
            )
        missing = len(self._records) - len(self._compared)
        early = (
            f"; it ended early, and {missing} more of {len(self._records)} steps were not compared" if missing else ""
        )
        if not self._compared:
            return f"no step of {self.run} was computed again{early}"
        steps = f"step {spans(self._compared)}" if len(self._compared) == 1 else f"steps {spans(self._compared)}"
        verb = "was" if len(self._compared) == 1 else "were"
        same = f"{', '.join(COMPARED)} are the recorded ones, bit for bit"
        return f"{steps} of {self.run} {verb} computed again: {same}{early}"


def read_replay(steps: str, checkpoint: Path | None) -> Replay:
    """Return the replay of so many steps. Raises ``UsageError`` without a checkpoint, or for a number that is none."""
    count = parse_whole_number(steps)
    if not count:
        raise UsageError(f"--replay takes a number of optimizer steps, 1 or more, got {show_value(steps)}")
    if checkpoint is None:
        raise UsageError(
            "--replay goes with --resume RUN/checkpoints/step-NNNNNNNN, behind which it computes steps again"
        )
    return Replay(checkpoint, count)
