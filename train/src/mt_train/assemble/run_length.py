"""The length of a run in optimizer steps."""

from __future__ import annotations

from typing import Protocol

from mt_core.errors import UsageError
from mt_train.config.bounds import MOST_STEPS
from mt_train.config.sections import TrainConfig
from mt_train.data.online import CollectsAnswers


class HasEpochs(Protocol):
    """Rows, or iterations of answers, whose epochs have a number of optimizer steps."""

    def steps_in(self, epochs: float) -> int:
        """Return the optimizer steps of so many epochs."""
        ...


class Iterations:
    """The optimizer steps in which an objective learns from answers to prompts, some prompts in each iteration."""

    def __init__(self, objective: CollectsAnswers, prompts: int) -> None:
        self.steps = objective.updates * objective.passes
        """Optimizer steps of an iteration."""
        self.in_epoch = -(-prompts // objective.prompts)
        """Iterations of an epoch; its last one may have fewer prompts."""

    def steps_in(self, epochs: float) -> int:
        """Return the optimizer steps of so many passes over the prompts."""
        return max(1, round(epochs * self.in_epoch)) * self.steps


def count_steps(config: TrainConfig, loader: HasEpochs) -> int:
    """Return the optimizer steps of a run. Raises ``UsageError`` for epochs with more of them than checkpoints have names for."""
    epochs = config.epochs or 1.0
    steps = config.steps or loader.steps_in(epochs)
    if steps > MOST_STEPS:
        raise UsageError(
            f"train.epochs={epochs:g} are {steps:,} optimizer steps or more, and a run has at most {MOST_STEPS:,}; ask for fewer epochs, or"
            " set a larger --train.global-batch-size"
        )
    return steps
