"""Where records go."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from mt_core.protocols import StepRecord
from mt_train.tracking.recorder import Recorder
from mt_train.tracking.trackers import GuardedTracker


@dataclass
class Kept:
    """A tracker that keeps the steps that it got, and that it was closed."""

    steps: list[int] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    def log(self, record: StepRecord) -> None:
        assert not self.ended, "after the end"
        self.steps.append(record.step)

    def close(self, *, failed: bool) -> None:
        self.ended.append(failed)


def record(step: int, **evaluation: float) -> StepRecord:
    clocks = {"tokens": 0, "tokens_per_second": 0.0, "memory_gib": 0.0, "data_wait_seconds": 0.0}
    return StepRecord(step=step, loss=1.0, lr=0.0, grad_norm=1.0, evaluation=evaluation, **clocks)


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize(
    ("last", "evaluated", "sent"), [(3, None, [3]), (10, None, [10]), (14, 12, [10, 12, 14]), (14, 14, [10, 14])]
)
def test_trackers_get_every_tenth_step_each_evaluation_and_the_last_step(
    last: int, evaluated: int | None, sent: list[int], failed: bool
) -> None:
    kept = Kept()
    recorder = Recorder(None, None, None, None, 10, [GuardedTracker("kept", lambda: kept)])
    for step in range(1, last + 1):
        recorder.append(record(step, **({"eval_loss": 1.0} if step == evaluated else {})))
    recorder.close_trackers(failed=failed)
    assert (kept.steps, kept.ended) == (sent, [failed])
