"""Encoded samples in flat columns, in memory or mapped from files, and the report of how they came about.

A row is encoded once: 5 bytes a token and 16 bytes and its id a sample, so that lengths, trained tokens and faults are known
before the first step.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import ComponentError, DataError
from mt_core.rows import MediaSpan, Sample
from mt_train.data.chunked_columns import fetch_ahead, pieces_of
from mt_train.data.columns import (
    COLUMNS,
    ENDS,
    ITEM_COLUMNS,
    LARGEST_ID,
    MEDIA_COLUMNS,
    MEDIA_NUMBERS,
    OF_DOCUMENT,
    OF_TOKEN,
    RowIds,
    code_of,
    dtype_of,
    extend_ids,
    is_column,
    pack_flags,
)
from mt_train.data.media.columns import add_spans, spans_of
from mt_train.data.order import as_written
from mt_train.data.row_statistics import RowStatistics

if TYPE_CHECKING:
    from mt_train.data.media.reader import MediaReader


class EncodedSamples:
    """Samples of one split, addressed by number."""

    def __init__(
        self,
        columns: Mapping[str, Any] | None = None,
        report: RowStatistics | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        *,
        reader: MediaReader | None = None,
    ) -> None:
        """Empty, to be filled by ``add``; or finished ``columns`` (``COLUMNS``; arrays, or ``ChunkedColumn``) with what is known of them.

        ``reader`` reads the media of batches; with it samples may have some.
        """
        codes = COLUMNS | (MEDIA_COLUMNS if reader is not None else {})
        self._growing: dict[str, array[Any]] = (
            {} if columns is not None else {name: array(code) for name, code in codes.items()}
        )
        self._given = len(self._growing)
        for name in self._growing.keys() & ENDS.keys():
            self._growing[name].append(0)
        self._columns = dict(columns) if columns is not None else {}
        self._fingerprint = dict(fingerprint) if fingerprint is not None else None
        self.report = report or RowStatistics()
        self.reader = reader

    def __len__(self) -> int:
        return len(self.column("ends")) - 1

    def __getitem__(self, number: int) -> Sample:
        ends = self.column("ends")
        start, end = int(ends[number]), int(ends[number + 1])
        ids, trained = self.column("ids")[start:end].astype(np.int64), self.column("trained")[start:end].copy()
        lengths: Sequence[int] = ()
        first = number
        if "documents" in self.names:
            first, last = (int(each) for each in self.column("document_ends")[number : number + 2])
            lengths = tuple(self.column("documents")[first:last].tolist())
        return Sample(
            ids,  # type: ignore[arg-type]
            trained,  # type: ignore[arg-type]
            self.row_ids[number],
            self._weights(number),
            lengths,
            self._values(OF_DOCUMENT, slice(first, first + (len(lengths) or 1))),
            self._values(OF_TOKEN, slice(start, end)),
            self.media_of(number),
        )

    def media_of(self, number: int) -> tuple[MediaSpan, ...]:
        """Return the media of a sample, with their places in it."""
        return spans_of(self.column, number) if "media" in self.names else ()

    def media_features_of(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return the features of the media of some samples; no look is taken at the others."""
        if "media" not in self.names:
            return [0] * len(numbers)
        media, ends = self.column("media"), self.column("media_ends")
        spans = zip(ends[numbers].tolist(), ends[numbers + 1].tolist(), strict=True)
        return [int(media[start:end].reshape(-1, MEDIA_NUMBERS)[:, 2].sum()) for start, end in spans]

    @property
    def media_features(self) -> NDArray[np.int64]:
        """Features of the media of each sample, those of all encoders together."""
        if "media" not in self.names:
            return np.zeros(len(self), np.int64)
        features = np.asarray(self.column("media")).reshape(-1, MEDIA_NUMBERS)[:, 2]
        sums, ends = np.concatenate([[0], features.cumsum()]), np.asarray(self.column("media_ends")) // MEDIA_NUMBERS
        found: NDArray[np.int64] = np.diff(sums[ends])
        return found

    def __iter__(self) -> Iterator[Sample]:
        return (self[number] for number in range(len(self)))

    def column(self, name: str) -> NDArray[Any]:
        """A whole column; it is not to be kept while samples are added."""
        if self._columns:
            column: NDArray[Any] = self._columns[name]
            return column
        return np.frombuffer(self._growing[name], dtype=dtype_of(name))

    @property
    def names(self) -> Set[str]:
        """The names of all columns."""
        return (self._columns or self._growing).keys()

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns by name."""
        return {name: self.column(name) for name in self.names}

    def _values(self, kind: str, places: slice) -> dict[str, tuple[float, ...]]:
        names = [name for name in self.names if name.startswith(kind)] if len(self.names) > len(COLUMNS) else []
        return {name.removeprefix(kind): tuple(self.column(name)[places].tolist()) for name in names}

    def with_values(self, values: Mapping[str, NDArray[np.float32]]) -> EncodedSamples:
        """These samples with further columns of values (``document.NAME``, ``token.NAME``) in the order of the samples.

        What tells the samples from others is what it was: such values are measured, and follow from them.
        """
        return EncodedSamples({**self.columns, **values}, self.report, self.fingerprint(), reader=self.reader)

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.int64]]:
        """Ids and trained places of all samples, one after another, and where each sample begins, with the end of the last."""
        return self.column("ids"), self.column("trained"), self.column("ends")

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample."""
        return np.diff(self.column("ends"))

    def lengths_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of some samples."""
        ends = self.column("ends")
        return ends[numbers + 1] - ends[numbers]  # type: ignore[no-any-return]

    def gather(
        self, numbers: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float32] | None]:
        """Ids, trained places and weights of some samples, one after another; ``lengths`` are theirs."""
        starts = self.column("ends")[numbers]
        spans = [slice(start, end) for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]
        ids, trained = self.column("ids"), self.column("trained")
        fetch_ahead(ids, starts)
        return (
            np.concatenate([_NO_IDS, *(ids[span] for span in spans)], dtype=np.int64),
            np.concatenate([_NO_FLAGS, *(trained[span] for span in spans)]),
            self._weights_of(numbers, lengths),
        )

    def _weights_of(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32] | None:
        found = [self._weights(number) for number in numbers.tolist()] if len(self.column("weighted")) else []
        if not any(weights is not None for weights in found):
            return None
        gathered = np.ones(int(lengths.sum()), np.float32)
        for weights, end in zip(found, lengths.cumsum().tolist(), strict=True):
            if weights is not None:
                gathered[end - len(weights) : end] = weights
        return gathered

    @property
    def row_ids(self) -> RowIds:
        """Return where each sample came from."""
        return RowIds(self.column("row_ids"), self.column("row_id_ends"))

    def _weights(self, number: int) -> tuple[float, ...] | None:
        weighted = self.column("weighted")
        if not len(weighted):
            return None
        place = int(np.searchsorted(weighted, number))
        if place == len(weighted) or weighted[place] != number:
            return None
        start, end = self.column("weight_ends")[place : place + 2]
        return tuple(self.column("weights")[start:end].tolist())

    def add(self, sample: Sample) -> None:
        """Keep one sample. Raises ``DataError`` for an id that no embedding could have, ``ComponentError`` where its documents or
        values are not such as those of the samples before it."""
        grown, report, (flags, count) = self._growing, self.report, pack_flags(sample.trained)
        try:
            extend_ids(grown["ids"], sample.ids)
        except OverflowError as error:
            raise DataError(
                f"{sample.row_id}: a token id is below {-(1 << 31)} or above {LARGEST_ID}. Encode the row again, or leave it out"
            ) from error
        if sample.documents or sample.document_values or sample.token_values or len(grown) > self._given:
            self._add_item(sample)
        if "media" in grown:
            add_spans(grown, sample.media)
        if sample.weights is not None:
            grown["weighted"].append(len(grown["ends"]) - 1)
            grown["weights"].fromlist(list(sample.weights))
            grown["weight_ends"].append(len(grown["weights"]))
        grown["trained"].frombytes(flags)
        grown["ends"].append(len(grown["ids"]))
        grown["row_ids"].frombytes(sample.row_id.encode("utf-8", "surrogateescape"))
        grown["row_id_ends"].append(len(grown["row_ids"]))
        report.samples += 1
        report.tokens_total += len(flags)
        report.tokens_trained += count - sum(flags[each][:1] == b"\1" for each in sample.spans)  # never predicted

    def _add_item(self, sample: Sample) -> None:
        """Keep documents and values. Raises ``ComponentError``."""
        tokens, lengths = len(sample.ids), tuple(sample.documents) or (len(sample.ids),)
        values = {OF_DOCUMENT + name: (each, len(lengths)) for name, each in sample.document_values.items()}
        values |= {OF_TOKEN + name: (each, tokens) for name, each in sample.token_values.items()}
        wanted = {*values, *(ITEM_COLUMNS if sample.documents else ())}
        if not len(self):
            self._growing |= {name: array(code_of(name), [0] if name in ENDS else []) for name in sorted(wanted)}
        found = self._growing.keys() - COLUMNS.keys() - MEDIA_COLUMNS.keys()
        if wanted != found:
            raise ComponentError(
                f"{sample.row_id}: the objective gives a sample with {_join(wanted)}, after others with {_join(found)}; all samples"
                " have documents or none, and values of the same names"
            )
        wrong = [name for name, (each, count) in values.items() if len(each) != count or not is_column(name)]
        if wrong or sum(lengths) != tokens or min(lengths) < 1:
            raise ComponentError(
                f"{sample.row_id}: the objective gives documents of {list(lengths)} tokens for {tokens} ids, and {len(wrong)} values"
                f" that are not one for each document or token or have no name of a-z, 0-9 and _{f': {_join(wrong)}' if wrong else ''}"
            )
        if sample.documents:
            self._growing["documents"].extend(lengths)
            self._growing["document_ends"].append(len(self._growing["documents"]))
        for name, (each, _) in values.items():
            self._growing[name].extend(each)

    def fingerprint(self) -> dict[str, Any]:
        """Return what tells these samples from others: their counts, and the SHA-256 of ids and trained places."""
        if self._fingerprint is not None:
            return dict(self._fingerprint)
        digest = hashlib.sha256()
        for name in ("ids", "trained", "ends"):
            for piece in pieces_of(self.column(name)):
                digest.update(np.ascontiguousarray(piece).view(np.uint8).data)
        for number in self.column("weighted").tolist():
            digest.update(repr((number, self._weights(number))).encode())
        for name in sorted(self.names - COLUMNS.keys() - {"media_items", "media_item_ends"}):
            digest.update(name.encode())
            for piece in pieces_of(self.column(name)):
                digest.update(piece.tobytes())
        for number in range(len(self)) if "media" in self.names else ():
            for span in self.media_of(number):  # by its content, wherever the file lies
                digest.update(span.item.encoder.encode() + (span.item.digest or span.item.content))
        counts = {"samples": len(self), "tokens": self.report.tokens_total, "trained": self.report.tokens_trained}
        return {"rows": self.report.rows_kept, **counts, "sha256": digest.hexdigest()}

    def split_off(self, share: float) -> tuple[EncodedSamples, EncodedSamples]:
        """All but the last ``share`` of the samples, and those: for a source whose only row is one long document."""
        cut = len(self) - max(1, int(len(self) * as_written(share))) if len(self) > 1 else 1
        parts = EncodedSamples(reader=self.reader), EncodedSamples(reader=self.reader)
        for number, sample in enumerate(self):
            parts[number >= cut].add(sample)
        of_rows = (
            "rows_read",
            "rows_kept",
            "rows_dropped",
            "rows_split",
            "rows_truncated",
            "rows_spelling",
            "tokens_cut",
            "trained_cut",
        )
        for name in (*of_rows, "places", "bad_rows"):
            setattr(parts[0].report, name, getattr(self.report, name))
        return parts


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no documents and no values"


_NO_IDS, _NO_FLAGS = np.empty(0, np.int32), np.empty(0, np.bool_)
