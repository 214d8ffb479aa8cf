"""Whole rows of a batch, for a teacher that reads them beside ranks that share rows. Shapes: B rows, t tokens here, T of a whole row."""

from __future__ import annotations

import torch
from torch import Tensor

from mt_core.nn import NOT_TRAINED, Batch


def whole_rows(batch: Batch) -> Batch:
    """Return the rows of a batch with all of their tokens, on every rank that has a part of them: what a model reads, without labels.

    Ranks that share rows all have to call it.
    """
    ids, positions, numbers = batch.input_ids, batch.positions, batch.document_ids
    lengths = batch.lengths
    if batch.row_tokens != ids.shape[1]:
        named = [ids, positions, numbers, *([] if lengths is None else [lengths])]
        ids, positions, numbers, *rest = _join(torch.stack([each.long() for each in named]), batch).unbind()
        lengths = rest[0] if rest else None
    return Batch(
        ids,
        torch.full_like(ids, NOT_TRAINED),
        positions,
        numbers,
        document_lengths=batch.document_lengths,
        lengths=lengths,
    )


def take_own_part(hidden_BTE: Tensor, batch: Batch) -> Tensor:
    """Return the tokens that this rank has: (B, T, E) -> (B, t, E)."""
    return hidden_BTE[:, batch.begin : batch.begin + batch.input_ids.shape[1]]


def _join(parts_NBt: Tensor, batch: Batch) -> Tensor:
    """Return whole rows, (N, B, t) -> (N, B, T): each rank puts its part into zeros, and these are added up."""
    whole_NBT = parts_NBt.new_zeros(*parts_NBt.shape[:2], batch.row_tokens)
    whole_NBT[:, :, batch.begin : batch.begin + parts_NBt.shape[2]] = parts_NBt
    return batch.over_row(whole_NBT)
