"""Figures for TensorBoard."""

from __future__ import annotations

import os
import socket
import time
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

from mt_core.protocols import StepRecord
from mt_core.tracking.appender import Appender

TAGS = {
    "loss": "train/loss",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "tokens_per_second": "speed/tokens_per_second",
    "memory_gib": "speed/memory_gib",
    "data_wait_seconds": "speed/data_wait_seconds",
    "epoch": "train/epoch",
    "seconds": "speed/seconds",
}


_PREFIX = "events.out.tfevents"
_NUMBERS = count()


class TensorBoardWriter:
    """Writes one file of events. A write that fails ends in one warning, never in the end of the training.

    Not torch's ``SummaryWriter``: it writes in a thread, which dies with a traceback of its own when a disk is full.
    """

    def __init__(self, folder: Path, *, purge_step: int | None = None) -> None:
        name = f"{_PREFIX}.{_stamp(folder):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self._file = Appender(folder / name)
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            self._write(step=purge_step, session_log={"status": 1})  # START: what follows replaces later steps

    def append(self, record: StepRecord) -> None:
        """Write the scalars of one record under stable tags."""
        values = record.as_dict()
        scalars = {tag: values[key] for key, tag in TAGS.items() if key in values}
        scalars |= {f"train/{key}": value for key, value in record.metrics.items()}
        scalars |= {f"eval/{key.removeprefix('eval_')}": value for key, value in record.evaluation.items()}
        listed = [{"tag": tag, "simple_value": value} for tag, value in scalars.items()]
        self._write(step=record.step, summary={"value": listed})

    def close(self) -> None:
        """Write what could not be written so far."""
        self._file.close()

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        framed = BytesIO()
        RecordWriter(framed).write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._file.append(framed.getvalue())


def _stamp(folder: Path) -> int:
    """Seconds since 1970, but after every file that is there: TensorBoard reads in the order of names, and clocks go back."""
    stamps = [path.name.removeprefix(f"{_PREFIX}.").partition(".")[0] for path in folder.glob(f"{_PREFIX}.*")]
    return max([int(time.time()), *(int(stamp) + 1 for stamp in stamps if stamp.isdecimal())])
