"""Sends each record where it belongs: the metrics file, TensorBoard, the console, and in the end a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mt_core.protocols import NATS_PER_TOKEN, StepRecord
from mt_core.tracking.logs import notice
from mt_train.tracking.console import ProgressLines
from mt_train.tracking.metrics import MetricsFile
from mt_train.tracking.plot import plot_losses
from mt_train.tracking.tensorboard import TensorBoardWriter
from mt_train.tracking.trackers import GuardedTracker


class Recorder:
    """Keeps the figures of a run; each of its outlets may be absent."""

    def __init__(
        self,
        metrics: MetricsFile | None,
        board: TensorBoardWriter | None,
        lines: ProgressLines | None,
        output: Path | None,
        board_every: int = 1,
        trackers: Sequence[GuardedTracker] = (),
        *,
        loss_unit: str = NATS_PER_TOKEN,
    ) -> None:
        self._loss_unit = loss_unit
        self._metrics = metrics
        self._board = board
        self._lines = lines
        self._output = output
        self._board_every = board_every
        self._trackers = trackers
        self._unsent: StepRecord | None = None
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self.eval_loss: float | None = None

    def append(self, record: StepRecord) -> None:
        """Write one record everywhere."""
        self.note_loss(record)
        self.eval_loss = record.evaluation.get("eval_loss", self.eval_loss)
        if self._metrics is not None:
            self._metrics.append(record)
        if record.evaluation or record.step % self._board_every == 0:
            self._send(record)
        else:
            self._unsent = record
        if self._lines is not None:
            self._lines.append(record)

    def _send(self, record: StepRecord) -> None:
        self._unsent = None
        if self._board is not None:
            self._board.append(record)
        for tracker in self._trackers:
            tracker.log(record)

    def note_loss(self, record: StepRecord) -> None:
        """Count the loss of a step among those of the run, also where its record is written later."""
        self.first_loss = record.loss if self.first_loss is None else self.first_loss
        self.last_loss = record.loss

    def close_trackers(self, *, failed: bool) -> None:
        """The run has ended, well or not: trackers get its last step, and are told; the bar of a terminal is taken away."""
        if self._unsent is not None:
            self._send(self._unsent)
        if self._lines is not None:
            self._lines.close()
        for tracker in self._trackers:
            tracker.close(failed=failed)

    def finish(self) -> None:
        """Complete the files and draw the loss curve."""
        if self._board is not None:
            self._board.close()
        if self._metrics is None or self._output is None:
            return
        self._metrics.close()
        try:
            plot_losses(self._metrics.records(), self._output / "loss.png", unit=self._loss_unit)
        except OSError as error:
            notice(f"warning: {self._output / 'loss.png'} cannot be written: {error.strerror or error}")
