"""The length of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from mt_core.errors import UsageError
from mt_train.assemble.run_length import count_steps
from mt_train.checkpoint.manifest import STEP_FOLDER
from mt_train.checkpoint.store import step_name
from mt_train.config.bounds import MOST_STEPS
from mt_train.config.sections import TrainConfig


@dataclass
class OfOneRow:
    """A loader whose epochs have a step each, or ``times`` as many."""

    times: int = 1

    def steps_in(self, epochs: float) -> int:
        return round(epochs) * self.times


def test_no_run_is_longer_than_checkpoints_have_names_for() -> None:
    """Beyond, ``latest`` named what nothing read, and no checkpoint was ever removed."""
    loader: Any = OfOneRow()
    assert STEP_FOLDER.fullmatch(step_name(MOST_STEPS))
    assert not STEP_FOLDER.fullmatch(step_name(MOST_STEPS + 1))
    assert count_steps(TrainConfig(epochs=MOST_STEPS), loader) == MOST_STEPS
    assert count_steps(TrainConfig(steps=MOST_STEPS), loader) == MOST_STEPS
    with pytest.raises(
        UsageError,
        match=r"train.epochs=1e\+08 are 100,000,000 optimizer steps or more, and a run has at most 99,999,999",
    ):
        count_steps(TrainConfig(epochs=MOST_STEPS + 1), loader)
    with pytest.raises(UsageError, match=r"train.epochs=1 are 100,000,000 optimizer steps"):
        count_steps(TrainConfig(), OfOneRow(times=MOST_STEPS + 1))  # one epoch, which nobody has asked for
    with pytest.raises(ValueError, match="less than or equal to 99999999"):
        TrainConfig(steps=MOST_STEPS + 1)
