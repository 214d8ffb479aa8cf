"""Base of objectives whose loss is a mean over items, such as pairs. Shapes: A documents of the batch, I items."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mt_core.nn import Batch, LossSums, TokenObjective


class ItemObjective(TokenObjective):
    """Items are counted, and their sums reported, once: ranks that share rows all have them, and the first one of these says so."""

    def count(self, batch: Batch) -> float:
        """Items of the batch that this rank counts."""
        return float(len(first_documents(batch)) if batch.counts_items else 0)

    def sums(
        self,
        batch: Batch,
        loss_I: Tensor,
        figures: Mapping[str, Tensor],
        terms: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    ) -> LossSums:
        """Loss and figures of each item as what the engine adds up."""
        count = torch.tensor(self.count(batch), device=loss_I.device)
        metrics = {name: mean_over(each, torch.ones_like(each), batch) for name, each in figures.items()}
        return LossSums(report_once(loss_I.sum(), batch), count, metrics, terms or {})


def mean_over(values_I: Tensor, among_I: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sum over some of the items (``among``, 1 or 0 of each) and how many these are, on the rank that counts them."""
    counts = float(batch.counts_items)
    return (values_I.detach() * among_I).sum() * counts, among_I.sum() * counts


def first_documents(batch: Batch) -> Tensor:
    """(I,) the number of each item's first document; the others of the item follow it."""
    assert batch.items is not None, "collate() numbers the items"
    return batch.items


def report_once(total: Tensor, batch: Batch) -> Tensor:
    """Return a sum over items: its gradient on all ranks that share the rows, and its value on the first of these."""
    return total if batch.counts_items else total - total.detach()
