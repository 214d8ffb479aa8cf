"""Units of a loss: the objective says what it counts in, and whoever shows the loss asks."""

from __future__ import annotations

from mt_core.protocols import NATS_PER_TOKEN


def loss_unit_of(objective: object) -> str:
    """Return the unit of an objective's loss; nothing where it says none, so that nobody claims one."""
    return str(getattr(objective, "loss_unit", ""))


def counts_tokens(objective: object) -> bool:
    """Return whether the loss is a mean over tokens, so that its exponential is a perplexity."""
    return loss_unit_of(objective) == NATS_PER_TOKEN
