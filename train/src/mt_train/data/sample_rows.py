"""Rows of encoded samples, on their way to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mt_core.rows import FlatRows, MediaSpan, Sample, join_media
from mt_train.data.columns import COLUMNS, OF_DOCUMENT, OF_TOKEN
from mt_train.data.samples import EncodedSamples


class SampleRows(Sequence[list[Sample]]):
    """Rows of some samples: lists of samples for who looks at them, columns for who asks for those (``HasFlat``)."""

    def __init__(self, samples: EncodedSamples, groups: Sequence[Sequence[int]]) -> None:
        self._samples, self._groups = samples, groups
        self._counts = np.fromiter(map(len, groups), np.int64, len(groups))
        self._numbers = np.fromiter(chain.from_iterable(groups), np.int64, int(self._counts.sum()))
        self._lengths = samples.lengths_of(self._numbers)

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, number: int) -> list[Sample]: ...
    @overload
    def __getitem__(self, number: slice) -> list[list[Sample]]: ...
    def __getitem__(self, number: int | slice) -> list[Sample] | list[list[Sample]]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        return [self._samples[each] for each in self._groups[number]]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        ends = np.append(0, self._lengths.cumsum())[np.append(0, self._counts.cumsum())]
        return int(np.diff(ends).max(initial=0))

    def flat(self) -> FlatRows:
        """See ``HasFlat``."""
        samples, numbers = self._samples, self._numbers
        ids, trained, weights = samples.gather(numbers, self._lengths)
        plain = FlatRows(ids, trained, weights, self._lengths, self._counts, samples.row_ids.of(numbers))
        if len(samples.names) == len(COLUMNS):
            return plain
        firsts, sizes = numbers, np.ones(len(numbers), np.int64)
        if "documents" in samples.names:
            ends = samples.column("document_ends")
            firsts, sizes = ends[numbers], ends[numbers + 1] - ends[numbers]
            ends_S = np.append(0, sizes.cumsum())[np.append(0, self._counts.cumsum())]
            lengths = _cut_out(samples.column("documents"), firsts, sizes)
            plain = replace(plain, lengths=lengths, counts=np.diff(ends_S), sizes=sizes)
        places = {OF_DOCUMENT: (firsts, sizes), OF_TOKEN: (samples.column("ends")[numbers], self._lengths)}
        of_document, of_token = (
            {
                name.removeprefix(kind): _cut_out(samples.column(name), *places[kind])
                for name in samples.names
                if name.startswith(kind)
            }
            for kind in (OF_DOCUMENT, OF_TOKEN)
        )
        return replace(plain, document_values=of_document, token_values=of_token, media=self._media())

    def _media(self) -> tuple[MediaSpan, ...]:
        """Media of all samples, with their places among all tokens."""
        if "media" not in self._samples.names:
            return ()
        return join_media(map(self._samples.media_of, self._numbers.tolist()), self._lengths.tolist())


def _cut_out(column: NDArray[Any], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Runs of a column, one after another."""
    spans = zip(starts.tolist(), (starts + counts).tolist(), strict=True)
    return np.concatenate([column[:0], *(column[start:end] for start, end in spans)])
