from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mt_core import Row, Sample
from mt_core.nn import NOT_TRAINED, Batch, LossSums, TokenObjective


class Answers(TokenObjective):
    """An objective without a fault."""

    def __init__(self, config: Any, *, tokenizer: Any, template: Any) -> None:
        super().__init__(pad_id=258)

    def encode(self, row: Row) -> Sample:
        prompt, response = (list(row[key].encode()) for key in ("prompt", "response"))
        return Sample([*prompt, *response], [False] * len(prompt) + [True] * len(response), row["id"])


class Unmarked(Answers):
    def encode(self, row: Row) -> Sample:
        sample = super().encode(row)
        return replace(sample, trained=sample.trained[1:])


class Mean(Answers):
    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        return LossSums(sums.loss_sum / sums.token_count, sums.token_count)


class WholeRows(Answers):
    """Each row of a batch counts as much as any other, whatever is packed into it."""

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums, trained = super().loss(hidden, head, batch), (batch.labels != NOT_TRAINED).sum(-1)
        return LossSums(sums.loss_sum * trained.float().mean(), sums.token_count)


class Padded(Answers):
    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        return LossSums(sums.loss_sum * batch.labels.shape[1], sums.token_count)


class Unmasked(Answers):
    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        return LossSums(sums.loss_sum + 1e-3 * hidden.square().sum(), sums.token_count)


class Miscounts(Answers):
    def count(self, batch: Batch) -> float:
        return float(torch.numel(batch.labels))


class OwnCount(Answers):
    """Divides by its own tokens, and tells the count."""

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        return LossSums(20 * sums.loss_sum / (batch.labels != NOT_TRAINED).sum(), sums.token_count)
