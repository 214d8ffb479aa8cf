"""What token objectives share: collating documents into rows, counting, and the language-model loss.

Shapes: B rows, T tokens, D model width, n trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.nn.batch import NOT_TRAINED, Batch, LossSums
from mt_core.nn.loss import PLAIN, LossTerms, chunked_loss
from mt_core.nn.scores import TokenScores
from mt_core.protocols import Rejected, Row, Sample


class TokenObjective:
    """Next-token prediction on the trained tokens of a sample. Subclasses say how a row is encoded."""

    def __init__(self, *, pad_id: int = 0, terms: LossTerms | None = None, scores: TokenScores | None = None) -> None:
        self.pad_id, self.terms, self.scores = pad_id, terms or PLAIN, scores

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample of a row, or why there is none."""
        raise NotImplementedError

    def collate(self, rows: Sequence[Sequence[Sample]], *, length: int) -> Batch:
        """One batch of ``len(rows)`` rows of ``length`` tokens.

        ``ids[t]`` predicts ``ids[t + 1]``: labels are shifted here and nowhere else. A document's last token has no label.
        """
        shape = (len(rows), length)
        input_ids, labels = torch.full(shape, self.pad_id), torch.full(shape, NOT_TRAINED)
        positions, document_ids = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        weights = torch.ones(shape) if any(sample.weights is not None for row in rows for sample in row) else None
        for b, row in enumerate(rows):
            start = 0
            for number, sample in enumerate(row):
                end = start + len(sample.ids)
                assert end <= length, f"row of {end} tokens in a batch of length {length}: the packer must not overfill"
                ids = torch.as_tensor(sample.ids, dtype=torch.long)
                trained = torch.as_tensor(sample.trained, dtype=torch.bool)
                input_ids[b, start:end] = ids
                labels[b, start : end - 1] = ids[1:].masked_fill(~trained[1:], NOT_TRAINED)
                last = length if number == len(row) - 1 else end  # padding continues the last document
                positions[b, start:last] = torch.arange(last - start)
                document_ids[b, start:last] = number
                if weights is not None and sample.weights is not None:
                    weights[b, start : end - 1] = torch.as_tensor(sample.weights, dtype=torch.float32)[1:]
                start = end
        ids_of_rows = tuple(sample.row_id for row in rows for sample in row)
        return Batch(input_ids, labels, positions, document_ids, weights, ids_of_rows)

    def count(self, batch: Batch) -> float:
        """Trained tokens of the batch, weighted where the samples carry weights."""
        trained = batch.labels != NOT_TRAINED
        return float(trained.sum() if batch.weights is None else batch.weights[trained].sum())

    def modules(self, model_config: Any) -> nn.Module | None:
        """Modules beside the model (a value head): none for a token objective."""
        return None

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum of the losses of the trained tokens; (B, T, D) -> scalar. An evaluation has the plain cross-entropy."""
        index_n = (
            batch.trained_n
            if batch.trained_n is not None
            else (batch.labels.reshape(-1) != NOT_TRAINED).nonzero().reshape(-1)
        )
        hidden_nD = hidden.flatten(0, 1)[index_n]
        labels_n = batch.labels.reshape(-1)[index_n]
        weights_n = None if batch.weights is None else batch.weights.reshape(-1)[index_n]
        loss_sum = chunked_loss(head, hidden_nD, labels_n, weights_n, terms=self.terms if head.training else PLAIN)
        count = torch.as_tensor(float(len(index_n)), device=hidden.device) if weights_n is None else weights_n.sum()
        metrics = {} if self.scores is None else self.scores.of(head, hidden_nD, labels_n)
        return LossSums(loss_sum, count, metrics)
