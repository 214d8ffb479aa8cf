"""What a loss is counted in: the objective says it, and whoever shows the loss asks."""

from __future__ import annotations

NATS_PER_TOKEN = "nats per token"  # noqa: S105 - no password
"""Unit of a loss that is the mean over trained tokens."""


def loss_unit_of(objective: object) -> str:
    """Return the unit of an objective's loss; nothing where it says none, so that nobody claims one."""
    return str(getattr(objective, "loss_unit", ""))


def counts_tokens(objective: object) -> bool:
    """Return whether the loss is a mean over tokens, so that its exponential is a perplexity."""
    return loss_unit_of(objective) == NATS_PER_TOKEN
