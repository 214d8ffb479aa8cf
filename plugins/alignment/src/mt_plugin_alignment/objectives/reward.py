"""Reward models: a score for each answer, learned from pairs, or from scores that people gave.

Shapes: B rows, T tokens, D model width, n trained tokens, A documents of the batch, P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mt_core import Rejected, Row, Sample
from mt_core.nn import Batch, LossSums, objective_modules

from ..reward_losses import bradley_terry, centring, scaled_bradley_terry, squared_error
from .items import ItemObjective, first_documents
from .rows import encode_pair, encode_scored
from .shapes import SIDES, number_of

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer

    from .config import RewardConfig


WHAT_A_MARGIN_IS = "with --objective.margin each row has a number there, by how much the chosen answer is better"


class RewardObjective(ItemObjective):
    """Common part of pairs and scored answers: a document's score is the head's output at its last token."""

    def __init__(self, tokenizer: Tokenizer, template: Template, config: RewardConfig) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template, self._config = template, config

    def collate(self, rows: Sequence[Sequence[Sample]], *, length: int) -> Batch:
        """See ``TokenObjective``. The last token of a document has a label too, itself: there the score is read."""
        batch = super().collate(rows, length=length)
        assert batch.lengths is not None, "TokenObjective says how long documents are"
        is_last_BT = batch.positions + 1 == batch.lengths
        return replace(batch, labels=torch.where(is_last_BT, batch.input_ids, batch.labels))

    def document_scores(self, hidden: Tensor, head: nn.Module, batch: Batch) -> Tensor:
        """(A,) the score of each document, on all ranks that share its row."""
        score_head = objective_modules(head)
        assert score_head is not None, "the component says which modules the trainer builds"
        assert batch.lengths is not None, "TokenObjective says how long documents are"
        hidden_nD, _ = batch.select_trained(hidden)
        is_last_n = (batch.positions + 1 == batch.lengths).reshape(-1)[batch.index_n()]
        return batch.document_sums(score_head(hidden_nD) * is_last_n)

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum over the items of the batch; see ``Objective``."""
        return self.sums(batch, *self.loss_of(self.document_scores(hidden, head, batch), batch))

    def loss_of(self, scores_A: Tensor, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss of each item and figures of each."""
        raise NotImplementedError


class PairwiseReward(RewardObjective):
    """Bradley-Terry over pairs, perhaps with a margin that rows give."""

    loss_unit = "per pair"
    document_names = SIDES

    def encode(self, row: Row) -> Sample | Rejected:
        """See ``encode_pair``. Raises ``DataError`` for a ``margin`` that is no number."""
        sample = encode_pair(row, self._template)
        if isinstance(sample, Rejected) or self._config.margin == "none":
            return sample
        return replace(sample, document_values={"margin": [number_of(row, "margin", WHAT_A_MARGIN_IS), 0.0]})

    def loss_of(self, scores_A: Tensor, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See ``RewardObjective``."""
        firsts = first_documents(batch)
        chosen, rejected = scores_A[firsts], scores_A[firsts + 1]
        if self._config.margin == "none":
            loss_P = bradley_terry(chosen, rejected)
        else:
            margins = batch.documents["margin"][firsts]
            form = bradley_terry if self._config.margin == "add" else scaled_bradley_terry
            loss_P = form(chosen, rejected, margins)
        if self._config.centring:
            loss_P = loss_P + self._config.centring * centring(chosen, rejected)
        return loss_P, {
            "score_chosen": chosen,
            "score_rejected": rejected,
            "score_margin": chosen - rejected,
            "score_accuracy": (chosen > rejected).float(),
        }


class ScoredReward(RewardObjective):
    """Regression on scores that rows give."""

    loss_unit = "per answer"

    def encode(self, row: Row) -> Sample | Rejected:
        """See ``encode_scored``."""
        return encode_scored(row, self._template)

    def loss_of(self, scores_A: Tensor, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See ``RewardObjective``."""
        firsts = first_documents(batch)
        scores, targets = scores_A[firsts], batch.documents["score"][firsts]
        return squared_error(scores, targets), {"score": scores, "score_error": (scores - targets).abs()}
