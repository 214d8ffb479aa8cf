"""The length of a run in optimizer steps."""

from __future__ import annotations

from mt_core.errors import UsageError
from mt_train.config.bounds import MOST_STEPS
from mt_train.config.sections import TrainConfig
from mt_train.data.loader import Loader


def count_steps(config: TrainConfig, loader: Loader) -> int:
    """Return the optimizer steps of a run. Raises ``UsageError`` for epochs with more of them than checkpoints have names for."""
    steps = config.steps or loader.steps_in(config.epochs or 1.0)
    if steps > MOST_STEPS:
        raise UsageError(
            f"train.epochs={config.epochs:g} are {steps:,} optimizer steps, and a run has at most {MOST_STEPS:,}; ask for fewer epochs, or"
            " set a larger --train.global-batch-size"
        )
    return steps
