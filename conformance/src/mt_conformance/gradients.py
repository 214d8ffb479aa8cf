"""Gradients of an objective's mean loss over batches, as the engine makes it, and their distance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mt_core.model_protocols import HasTerms, Objective
from mt_core.nn import Batch, TrainModel
from mt_train.engine.coupling import couple
from mt_train.engine.step import Reader


@dataclass(frozen=True)
class Gradients:
    """The mean loss (nats), and the gradient of every parameter."""

    loss: Tensor
    by_name: dict[str, Tensor]

    def distance(self, other: Gradients) -> tuple[float, str]:
        """The largest difference of one parameter's gradient, as a share of its length, and whose it is."""
        apart = {
            name: float((mine - other.by_name[name]).norm() / mine.norm().clamp(min=1e-6))
            for name, mine in self.by_name.items()
        }
        worst = max(apart, key=lambda name: apart[name])
        return apart[worst], worst


def gradients(model: TrainModel, objective: Objective, batches: Sequence[Batch]) -> Gradients:
    """Return the gradients of the mean loss over what the batches count, and of the means of its terms, as the engine makes it."""

    def read(some: Sequence[Batch], reader: Reader) -> None:
        with torch.no_grad():
            for batch in some:
                reader(model(batch), model.head, batch)

    batches = list(couple(objective, batches, read))
    model.zero_grad()
    total = sum(objective.count(batch) for batch in batches)
    totals: Counter[str] = Counter()
    for batch in batches:
        totals.update(term_counts(objective, batch))
    sums = [objective.loss(model(batch), model.head, batch) for batch in batches]
    loss = torch.stack([each.loss_sum for each in sums]).sum() / total
    for name, count in totals.items():
        loss = loss + torch.stack([each.terms[name][0] for each in sums]).sum() / count
    loss.backward()  # type: ignore[no-untyped-call]
    named = model.named_parameters()
    return Gradients(loss.detach(), {name: each.grad for name, each in named if each.grad is not None})


def term_counts(objective: Objective, batch: Batch) -> dict[str, float]:
    """Return the denominators of the loss's terms; none where it has no terms."""
    return dict(objective.count_terms(batch)) if isinstance(objective, HasTerms) else {}
