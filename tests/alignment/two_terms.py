"""An objective over pairs with two denominators, written for the tests: a mean over pairs, and one over tokens.

Shapes: n trained tokens, D documents, P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.nn import Batch, LossSums, TokenObjective, token_logprobs
from mt_plugin_alignment.objectives.rows import encode_pair


class TwoTerms(TokenObjective):
    """Mean over pairs of (Σ chosen - Σ rejected)² / 1000, and mean over all tokens of -log p, neither of which follows from the other.

    ``counts`` says whose mean is the loss itself: ``pairs``, where the other is a further term, or ``tokens``, where there is none else.
    """

    def __init__(self, *, tokenizer: Any, template: Any, counts: str, **others: Any) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template, self._counts = template, counts

    def encode(self, row: Any) -> Any:
        return encode_pair(row, self._template)

    def count(self, batch: Batch) -> float:
        return float(batch.trained_tokens) if self._counts == "tokens" else float(len(batch.items) * batch.counts_items)

    def count_terms(self, batch: Batch) -> Mapping[str, float]:
        return {} if self._counts == "tokens" else {"likelihood": float(batch.trained_tokens)}

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        index_n = batch.index_n()
        logps_n, _ = token_logprobs(head, hidden.flatten(0, 1)[index_n], batch.labels.reshape(-1)[index_n])
        likelihood = -logps_n.sum(), torch.tensor(float(len(index_n)))
        if self._counts == "tokens":
            return LossSums(*likelihood)
        sums_D = batch.document_sums(logps_n)
        loss = ((sums_D[batch.items] - sums_D[batch.items + 1]) ** 2 / 1000).sum()
        if not batch.counts_items:
            loss = loss - loss.detach()  # the ranks that share its rows all have its gradient, and one its value
        return LossSums(loss, torch.tensor(self.count(batch)), {}, {"likelihood": likelihood})
