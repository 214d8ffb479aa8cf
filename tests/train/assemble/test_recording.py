"""Files of figures, in which a resumed run goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from mt_core.protocols import StepRecord
from mt_train.assemble.recording import open_recorder
from mt_train.data.loader import Position
from mt_train.loop import Progress


def record(step: int) -> StepRecord:
    clocks = {"tokens": 0, "tokens_per_second": 1.0, "memory_gib": 0.0, "data_wait_seconds": 0.0}
    return StepRecord(step=step, loss=1.0, lr=0.0, grad_norm=1.0, evaluation={"eval_loss": 1.0}, **clocks)


def parts() -> Any:
    config = SimpleNamespace(
        log=SimpleNamespace(every_steps=1), task_print=SimpleNamespace(name="loss"), as_raw=dict[str, Any]
    )
    return SimpleNamespace(config=config, stem="run", task_print=lambda: lambda records: "", trackers=lambda run: {})


@pytest.mark.parametrize(("is_pending", "begins"), [(False, 4), (True, 3)])
def test_a_step_that_is_evaluated_again_is_not_twice_in_tensorboard(
    tmp_path: Path, is_pending: bool, begins: int
) -> None:
    """The evaluation of step 3 was cut short, written by a resumed run, and is owed again since that was killed before its save."""
    first = open_recorder(parts(), tmp_path, Progress(), (), total_steps=9, is_main=True)
    for step in (1, 2, 3):
        first.append(record(step))
    first.finish()
    progress = Progress(3, 0, Position(0, 3), record(3) if is_pending else None)
    again = open_recorder(parts(), tmp_path, progress, (), total_steps=9, is_main=True)
    again.append(record(begins))
    again.finish()
    events = [
        event for path in sorted((tmp_path / "tensorboard").iterdir()) for event in EventFileLoader(str(path)).Load()
    ]
    assert [event.step for event in events if event.HasField("summary")] == [1, 2, 3, begins]
    assert [event.step for event in events if event.HasField("session_log")] == [begins], (
        "later steps are replaced from it on"
    )
