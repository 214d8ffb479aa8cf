"""Size and result of an optimizer step: what all ranks add up, and the means that come of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from mt_core.model_protocols import HasTerms
from mt_core.nn import Batch
from mt_core.nn.batch import mean_of
from mt_train.engine.processes import Process, all_reduce


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of one optimizer step.

    ``applied`` is false when nothing was updated; ``stop`` says that some rank wants to stop, ``save`` that one
    wants a checkpoint.
    """

    loss: float
    grad_norm: float
    tokens: int
    applied: bool
    metrics: Mapping[str, float] = field(default_factory=dict)
    stop: bool = False
    save: bool = False

    @property
    def finite(self) -> bool:
        """Return whether loss and norm are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class StepSize(NamedTuple):
    """Size of a whole optimizer step: ``weight`` (N) divides its loss, and ``tokens`` are those that have a label.

    ``terms`` divide further terms of the loss, by name.
    """

    weight: float
    tokens: int
    terms: Mapping[str, float] = {}


def measure_size(objective: Any, window: Sequence[Batch], process: Process, *, counted: bool = True) -> StepSize:
    """Add up the size over all micro-batches and ranks where they are ``counted``. Where an objective has no labels, only its
    counts can be reported."""
    terms = [objective.count_terms(batch) if isinstance(objective, HasTerms) else {} for batch in window]
    weight = float(sum(objective.count(batch) for batch in window))
    tokens = float(sum(batch.trained_tokens for batch in window))
    values = [weight, tokens, *(float(sum(each[name] for each in terms)) for name in terms[0])]
    if process.world > 1:
        here = torch.tensor(values, dtype=torch.float64, device=process.device) * counted
        values = all_reduce(here).tolist()
    weight, tokens, *others = values
    return StepSize(weight, round(tokens or weight), dict(zip(terms[0], others, strict=True)))


def mean_figures(
    pairs: Sequence[float], terms: Sequence[str], others: Sequence[str], *, weight: float
) -> tuple[float, dict[str, float]]:
    """Return what further terms add to the loss, and the means of all pairs of sum and count by name, these terms included.

    ``weight`` divides the loss. Where it is above 0, a figure that counts nothing is left out: with labelled answers a step may have
    none of one kind, and 0 would look like one.
    """
    named = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate((*terms, *others))}
    means = {
        name: mean_of(total, count)
        for name, (total, count) in named.items()
        if name in terms or count > 0 or not weight
    }
    return sum(means[name] for name in terms), means
