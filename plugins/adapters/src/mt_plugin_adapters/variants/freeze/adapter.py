"""Chooses among the parameters that the model has."""

from __future__ import annotations

from mt_core import Adapter, UsageError, block_number, matching_pattern, require_matches
from mt_core.nn import TrainModel

from .config import FreezeConfig


class Freeze(Adapter):
    """Trains the last blocks, and what patterns name."""

    def __init__(self, config: FreezeConfig) -> None:
        self.config = config

    def trainable_parameters(self, model: TrainModel) -> list[str]:
        """Raises ``UsageError`` for more blocks than there are, and for a pattern that matches no name."""
        names = [name for name, _ in model.named_parameters()]
        numbers = {number for name in names if (number := block_number(name)) is not None}
        if self.config.blocks > len(numbers):
            raise UsageError(
                f"adapter.blocks: {self.config.blocks} is more than the {len(numbers)} blocks of the model"
            )
        require_matches("adapter.also", self.config.also, names)
        for pattern in self.config.also:
            model.refuse_kept("adapter.also", pattern, [name for name in names if matching_pattern(name, [pattern])])
        last = sorted(numbers)[len(numbers) - self.config.blocks :]
        return [name for name in names if block_number(name) in last or matching_pattern(name, self.config.also)]
