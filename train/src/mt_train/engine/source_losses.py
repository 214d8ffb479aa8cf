"""The training loss of each source of the rows, on steps that are logged.

Its tokens have been through the model anyway; the head computes them once more, without a gradient. Shapes: B rows, T tokens, D model
width, n trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from mt_core.model_protocols import Objective
from mt_core.nn import Batch
from mt_core.nn.batch import NOT_TRAINED
from mt_train.data.source_labels import SOURCE


class SourceLosses:
    """Sum and count of the loss of each source (``loss_NAME``): of every one in every batch, so that ranks and stages agree."""

    def __init__(self, names: Sequence[str], every_steps: int) -> None:
        self.names = tuple(f"loss_{name}" for name in names)
        self._every, self._due = every_steps, False

    def begin(self, step: int) -> None:
        """Begin this step, whose record may be one that is logged."""
        self._due = step % self._every == 0

    @torch.no_grad()
    def pairs(self, objective: Objective, hidden_BTD: Tensor, head: nn.Module, batch: Batch) -> list[Tensor]:
        """Return the sums and counts, in the order of the names; zeros where the step is not logged, or the batch has no sources."""
        if not (self._due and SOURCE in batch.documents):
            return [torch.zeros((), device=hidden_BTD.device)] * (2 * len(self.names))
        index_n = batch.index_n()
        source_n = batch.documents[SOURCE][batch.document_n()]
        found: list[Tensor] = []
        for number in range(len(self.names)):
            own_n = index_n[source_n == number]
            labels = torch.full_like(batch.labels, NOT_TRAINED).reshape(-1)
            labels[own_n] = batch.labels.reshape(-1)[own_n]
            part = replace(batch, labels=labels.view_as(batch.labels), trained_n=own_n)
            sums = objective.loss(hidden_BTD.detach(), head, part)
            found += [sums.loss_sum.float(), sums.token_count]
        return found
