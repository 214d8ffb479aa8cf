"""The same numbers for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from mt_core.protocols import StepRecord
from mt_core.tracking.logs import notice

TAGS = {
    "loss": "train/loss",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "tokens_per_second": "speed/tokens_per_second",
    "memory_gib": "speed/memory_gib",
    "data_wait_seconds": "speed/data_wait_seconds",
}


class TensorBoardWriter:
    """Writes event files. A write that fails ends the events with one warning, never the training."""

    def __init__(self, folder: Path, *, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: SummaryWriter | None = SummaryWriter(str(folder), purge_step=purge_step)

    def append(self, record: StepRecord) -> None:
        """Write the scalars of one record under stable tags."""
        values = record.as_dict()
        scalars = {tag: values[key] for key, tag in TAGS.items()}
        scalars |= {f"train/{key}": value for key, value in record.metrics.items()}
        scalars |= {f"eval/{key.removeprefix('eval_')}": value for key, value in record.evaluation.items()}
        if self._writer is None:
            return
        try:
            for tag, value in scalars.items():
                self._writer.add_scalar(tag, value, record.step)
            self._writer.flush()
        except OSError as error:
            self._writer = None
            notice(f"warning: no more TensorBoard events: {error.strerror or error}")

    def close(self) -> None:
        """Finish the event file."""
        if self._writer is not None:
            self._writer.close()
