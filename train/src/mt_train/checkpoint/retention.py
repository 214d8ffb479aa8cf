"""Choice of a run's checkpoints that stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, order=True)
class SavedCheckpoint:
    """A checkpoint on the disk; the order is that of the saves."""

    save_number: int
    step: int
    path: Path
    size: int
    evaluation: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Rule for the checkpoints that stay: the ``last`` newest saves, the ``best`` by a figure of their evaluation, and the
    one that ``latest`` names."""

    last: int
    best: int = 0
    by: str = "eval_loss:min"
    latest: str = ""

    def rank_by_figure(self, found: Iterable[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Return the checkpoints with that figure, the best first; of equal ones that which was saved first: later ones were not better."""
        figure, _, mode = self.by.partition(":")
        sign = -1 if mode == "max" else 1
        rated = [each for each in found if figure in each.evaluation]
        return sorted(rated, key=lambda each: (sign * each.evaluation[figure], each.save_number))
