"""Base of token objectives: collating documents into rows, counting, and the language-model loss.

Shapes: B rows, T tokens, D model width, n trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mt_core.nn.batch import NOT_TRAINED, Batch, LossSums
from mt_core.nn.collation import collate, flatten
from mt_core.nn.loss import PLAIN, LossTerms, chunked_loss
from mt_core.nn.scores import TokenScores
from mt_core.protocols import NATS_PER_TOKEN
from mt_core.rows import HasFlat, Rejected, Row, Sample

OBJECTIVE = "objective"
"""Name below the model's head of what an objective trains beside it."""


def split_objective_name(name: str) -> tuple[str, str] | None:
    """Return the head's prefix and the parameter's own name, as ``score.weight``; ``None`` for a parameter of the model itself."""
    head, found, own = name.rpartition(f".{OBJECTIVE}.")
    return (head, own) if found else None


def objective_modules(head: nn.Module) -> nn.Module | None:
    """Return what ``ObjectiveComponent.modules`` built for this head, even if an adapter wraps the head; ``None`` for nothing."""
    return next((each.get_submodule(OBJECTIVE) for each in head.modules() if OBJECTIVE in each._modules), None)


class TokenObjective:
    """Next-token prediction on the trained tokens of a sample. Subclasses define how a row is encoded."""

    loss_unit = NATS_PER_TOKEN
    """Unit of the loss. A subclass whose loss is no mean over tokens says another one, or nothing."""

    def __init__(self, *, pad_id: int = 0, terms: LossTerms | None = None, scores: TokenScores | None = None) -> None:
        self.pad_id, self.terms, self.scores = pad_id, terms or PLAIN, scores

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a row, or why there is none."""
        raise NotImplementedError

    def collate(self, rows: Sequence[Sequence[Sample]], *, length: int) -> Batch:
        """One batch of ``len(rows)`` rows of ``length`` tokens.

        ``ids[t]`` predicts ``ids[t + 1]``: labels are shifted here and nowhere else. A document's last token has no label.
        """
        flat = rows.flat() if isinstance(rows, HasFlat) else flatten(rows)
        return collate(flat, length=length, pad_id=self.pad_id)

    def count(self, batch: Batch) -> float:
        """Trained tokens of the batch, weighted where the samples carry weights."""
        trained = batch.labels != NOT_TRAINED
        return float(trained.sum() if batch.weights is None else batch.weights[trained].sum())

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum of the losses of the trained tokens; (B, T, D) -> scalar. An evaluation has the plain cross-entropy."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        weights_n = None if batch.weights is None else batch.weights.reshape(-1)[batch.index_n()]
        loss_sum = chunked_loss(head, hidden_nD, labels_n, weights_n, terms=self.terms if head.training else PLAIN)
        count = torch.as_tensor(float(len(labels_n)), device=hidden.device) if weights_n is None else weights_n.sum()
        metrics = {} if self.scores is None else self.scores.of(head, hidden_nD, labels_n, weights_n)
        return LossSums(loss_sum, count, metrics)
