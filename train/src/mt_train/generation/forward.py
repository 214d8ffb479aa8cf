"""The one place where generation runs the model.

Shapes: B rows, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt_core.nn import Batch, KVCache, MediaBatch, TrainModel
from mt_core.nn.positions import grid_positions
from mt_core.rows import MediaSpan
from mt_train.generation.products import head_in_blocks, layers_in_blocks

Forward = Callable[[TrainModel, Batch, KVCache], Tensor]
"""``forward(model, batch, cache)``: run the model on T more tokens of each row, which the cache gets, and return the (B, V) logits
after the last of them. All that generation computes with a model goes through one such function, so that a caller can put another
around ``last_logits``, for instance one with which every rank runs equally many forwards."""


def last_logits(model: TrainModel, batch: Batch, cache: KVCache) -> Tensor:
    """(B, V) logits after the last token of each row."""
    with layers_in_blocks(model, batch.input_ids):
        hidden_BD = model(batch, cache)[:, -1]
    with head_in_blocks(model.head, hidden_BD):
        logits_BV: Tensor = model.head(hidden_BD)
    return logits_BV


def make_batch(ids_BT: Tensor, positions_BT: Tensor, grid_positions_BT3: Tensor | None = None) -> Batch:
    """Rows of one document each, on the device of the ids; there are no labels in generation."""
    zeros_BT = torch.zeros_like(ids_BT)
    return Batch(ids_BT, zeros_BT, positions_BT, zeros_BT, grid_positions=grid_positions_BT3)


def grid_of(media: Sequence[MediaSpan], length: int, *, padding: int = 0) -> NDArray[np.int64] | None:
    """Return (T, 3), times, rows and columns of a text of ``length`` tokens with padding on its left; ``None`` where no item has some."""
    grid_T3 = grid_positions(media, [length])
    return None if grid_T3 is None else np.pad(grid_T3, ((padding, 0), (0, 0)))


ReadMedia = Callable[[Batch], Batch]
"""Gives a batch on the host the inputs of every encoder."""


def media_batch(batch: Batch, spans: Iterable[tuple[int, MediaSpan]], begin: int, read: ReadMedia | None) -> Batch:
    """Return a batch on the host with the media that have places in it, read. Without any no encoder is called.

    ``spans`` are rows and media, whose places count from the column ``begin`` of the batch. An item of which only some places are in
    the batch is encoded as a whole.
    """
    length = batch.input_ids.shape[1]
    here = [(row, span) for row, span in spans if span.start < begin + length and span.start + span.tokens > begin]
    if not here:
        return batch
    assert read is not None, "whoever takes a prompt has looked whether the model has encoders"
    names = sorted({span.item.encoder for _, span in here})
    found = {name: _media([each for each in here if each[1].item.encoder == name], begin, length) for name in names}
    return read(replace(batch, media=found))


def _media(spans: Sequence[tuple[int, MediaSpan]], begin: int, length: int) -> MediaBatch:
    places, rows, before = list[int](), list[int](), 0
    for row, span in spans:
        for number in range(max(0, begin - span.start), min(span.tokens, begin + length - span.start)):
            places.append(row * length + span.start + number - begin)
            rows.append(before + number)
        before += span.tokens
    listed = [span for _, span in spans]
    return MediaBatch(
        tuple(span.item for span in listed),
        tuple(span.features for span in listed),
        tuple(span.tokens for span in listed),
        tuple(span.grid for span in listed),
        torch.tensor(places, dtype=torch.int64),
        torch.tensor(rows, dtype=torch.int64),
    )


def next_batch(
    tokens: Sequence[int], positions: Sequence[int], device: torch.device, shifts: Sequence[int] = ()
) -> Batch:
    """One more token of each row; ``shifts`` say how far it is from its position in time, row and column (``shift_behind``)."""
    if not any(shifts):
        both_2B1 = torch.tensor([tokens, positions], device=device)[:, :, None]
        return make_batch(both_2B1[0], both_2B1[1])
    places = [position + shift for position, shift in zip(positions, shifts, strict=True)]
    all_3B1 = torch.tensor([tokens, positions, places], device=device)[:, :, None]
    return make_batch(all_3B1[0], all_3B1[1], all_3B1[2, :, :, None].expand(-1, -1, 3))
