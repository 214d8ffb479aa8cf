"""Samples to batches, over whole columns: no loop over samples or tokens.

Shapes: B rows, T tokens of a row, N tokens of all documents, S documents, I items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mt_core.nn.batch import NOT_TRAINED, Batch
from mt_core.nn.media import MediaBatch
from mt_core.nn.positions import grid_positions
from mt_core.rows import FlatRows, MediaSpan, Sample, join_media


def collate(flat: FlatRows, *, length: int, pad_id: int) -> Batch:
    """The batch of these rows, ``length`` tokens each. Labels are shifted here and nowhere else.

    A document's last token has no label. Padding continues the last document of its row; an empty row is padding alone.
    """
    lengths_S, counts_B = _without_empty(flat)
    ends_S, last_B = lengths_S.cumsum(), counts_B.cumsum() - 1
    filled_B = ends_S[last_B]
    filled_B[1:] -= filled_B[:-1].copy()
    longest = int(filled_B.max(initial=0))
    assert longest <= length, f"row of {longest} tokens in a batch of length {length}: the packer must not overfill"
    final_N = (ends_S - 1)[lengths_S > 0]
    wanted_N = flat.ids if flat.trained.all() else np.where(flat.trained, flat.ids, NOT_TRAINED)
    labels_N = _shift(wanted_N, final_N, NOT_TRAINED)
    weights_N = None if flat.weights is None else _shift(flat.weights, final_N, 1)
    positions_BT, document_ids_BT, lengths_BT = _places(lengths_S, counts_B, last_B, length - filled_B, length)
    empty_B = flat.counts == 0
    positions_BT[empty_B] = 0
    grid_N3 = grid_positions(flat.media, flat.lengths) if flat.media else None
    tokens = {name: _scatter(_shift(each, final_N, 0), filled_B, length, 0) for name, each in flat.token_values.items()}
    return Batch(
        _scatter(flat.ids, filled_B, length, pad_id),
        _scatter(labels_N, filled_B, length, NOT_TRAINED),
        torch.from_numpy(positions_BT),
        torch.from_numpy(document_ids_BT),
        None if weights_N is None else _scatter(weights_N, filled_B, length, 1),
        flat.row_ids,
        lengths=torch.from_numpy(lengths_BT),
        tokens=tokens,
        documents={
            name: torch.from_numpy(_fill_empty(each, flat.counts)) for name, each in flat.document_values.items()
        },
        items=torch.from_numpy(_first_documents(flat, empty_B)),
        media=_media(flat.media, filled_B, length) if flat.media else {},
        grid_positions=None if grid_N3 is None else _scatter(grid_N3, filled_B, length, 0),
    )


def flatten(rows: Sequence[Sequence[Sample]]) -> FlatRows:
    """Rows of samples as columns."""
    samples = list(chain.from_iterable(rows))
    ids = [np.asarray(sample.ids, dtype=np.int64) for sample in samples]
    trained = [np.asarray(sample.trained, dtype=np.bool_) for sample in samples]
    weights = None
    if any(sample.weights is not None for sample in samples):
        weights = _join([_weights(sample) for sample in samples], np.float32)
    documents = [tuple(sample.documents) or (len(sample.ids),) for sample in samples]
    sizes = np.array([len(each) for each in documents], np.int64)
    row_sizes = [sum(len(sample.documents) or 1 for sample in row) for row in rows]
    return FlatRows(
        _join(ids, np.int64),
        _join(trained, np.bool_),
        weights,
        np.array([*chain.from_iterable(documents)], np.int64),
        np.array(row_sizes, np.int64),
        tuple(sample.row_id for sample in samples),
        sizes if any(sample.documents for sample in samples) else None,
        _values([sample.document_values for sample in samples]),
        _values([sample.token_values for sample in samples]),
        join_media((sample.media for sample in samples), map(len, ids)),
    )


def _media(spans: Sequence[MediaSpan], filled_B: NDArray[np.int64], length: int) -> dict[str, MediaBatch]:
    """The media of each encoder, with their places in the rows."""
    ends_B, found = filled_B.cumsum(), {}
    for name in sorted({span.item.encoder for span in spans}):
        own = [span for span in spans if span.item.encoder == name]
        places_M = np.concatenate([np.arange(span.start, span.start + span.tokens) for span in own])
        rows_M = np.searchsorted(ends_B, places_M, side="right")
        columns_M = places_M - (ends_B - filled_B)[rows_M]
        found[name] = MediaBatch(
            tuple(span.item for span in own),
            tuple(span.features for span in own),
            tuple(span.tokens for span in own),
            tuple(span.grid for span in own),
            torch.from_numpy(rows_M * length + columns_M),
            torch.arange(len(places_M)),
        )
    return found


def _values(samples: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, NDArray[np.float32]]:
    names = samples[0] if samples else {}
    return {name: _join([np.asarray(each[name], np.float32) for each in samples], np.float32) for name in names}


def _weights(sample: Sample) -> NDArray[np.float32]:
    if sample.weights is None:
        return np.ones(len(sample.ids), np.float32)
    return np.asarray(sample.weights, dtype=np.float32)


def _join(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _without_empty(flat: FlatRows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths and counts, where an empty row has one document of no token."""
    return _fill_empty(flat.lengths, flat.counts), flat.counts + (flat.counts == 0)


def _fill_empty(values_S: NDArray[Any], counts_B: NDArray[np.int64]) -> NDArray[Any]:
    """Values of documents, and 0 for the one of an empty row."""
    if counts_B.all():
        return values_S
    filled_S: NDArray[Any] = np.insert(values_S, (counts_B.cumsum() - counts_B)[counts_B == 0], 0)
    return filled_S


def _first_documents(flat: FlatRows, empty_B: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The number of each item's first document; those of empty rows are counted, and are no items."""
    numbers_S: NDArray[np.int64] = np.arange(len(flat.lengths)) + empty_B.cumsum().repeat(flat.counts)
    return numbers_S if flat.sizes is None else numbers_S[flat.sizes.cumsum() - flat.sizes]


def _shift(values_N: NDArray[Any], final_N: NDArray[np.int64], beyond: float) -> NDArray[Any]:
    """Return for each token the value of the next; ``beyond`` the end of a document."""
    shifted_N = np.empty_like(values_N)
    shifted_N[:-1] = values_N[1:]
    shifted_N[final_N] = beyond
    return shifted_N


def _places(
    lengths_S: NDArray[np.int64],
    counts_B: NDArray[np.int64],
    last_B: NDArray[np.int64],
    room_B: NDArray[np.int64],
    length: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Each place's position in its document, the document's number in the row, and its length without padding."""
    spans_S = lengths_S.copy()
    spans_S[last_B] += room_B
    starts_S, shape = spans_S.cumsum() - spans_S, (len(counts_B), length)
    numbers_S = (np.arange(len(spans_S)) - (last_B + 1 - counts_B).repeat(counts_B)).astype(np.int32)
    positions = np.arange(len(counts_B) * length) - starts_S.repeat(spans_S)
    numbers_N, lengths_N = numbers_S.repeat(spans_S), lengths_S.astype(np.int32).repeat(spans_S)
    return positions.reshape(shape), numbers_N.reshape(shape), lengths_N.reshape(shape)


def _scatter(values_N: NDArray[Any], filled_B: NDArray[np.int64], length: int, padding: float) -> torch.Tensor:
    """Each row's own values, and padding behind them; a third of the time of a mask over all places."""
    values_BT = np.full((len(filled_B), length, *values_N.shape[1:]), padding, values_N.dtype)
    start = 0
    for row, count in enumerate(filled_B.tolist()):
        values_BT[row, :count] = values_N[start : start + count]
        start += count
    return torch.from_numpy(values_BT)
