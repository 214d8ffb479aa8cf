"""Encoded samples in compact arrays, and the report of how they came about.

A row is encoded once, at the start: 6 bytes a token, so that lengths, trained tokens and faults are known before the
first step.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import DataError, did_you_mean
from mt_core.protocols import Dataset, Objective, Rejected, Row, Sample


@dataclass
class DataReport:
    """What became of the rows of one split."""

    rows_read: int = 0
    rows_kept: int = 0
    rows_dropped: Counter[str] = field(default_factory=Counter)
    rows_split: int = 0
    samples: int = 0
    tokens_total: int = 0
    tokens_trained: int = 0

    def describe(self) -> str:
        """One line for people."""
        share = 100 * self.tokens_trained / max(self.tokens_total, 1)
        dropped = "".join(f", {count} dropped ({reason})" for reason, count in self.rows_dropped.items())
        cut = f", {self.rows_split} split into {self.samples} samples" if self.rows_split else ""
        rows = "1 row" if self.rows_kept == 1 else f"{self.rows_kept:,} rows"
        return f"{rows}{cut}{dropped}, {self.tokens_total:,} tokens, {share:.1f}% trained on"


class EncodedSamples:
    """Samples of one split, addressed by number."""

    def __init__(self) -> None:
        self._ids = array("i")
        self._trained = bytearray()
        self._weights: dict[int, tuple[float, ...]] = {}
        self._ends = array("q", [0])
        self._row_ids: list[str] = []
        self.report = DataReport()

    def __len__(self) -> int:
        return len(self._row_ids)

    def __getitem__(self, number: int) -> Sample:
        start, end = self._ends[number], self._ends[number + 1]
        ids = np.frombuffer(self._ids, dtype=np.int32, count=end - start, offset=start * 4).astype(np.int64)
        trained = np.frombuffer(self._trained, dtype=np.bool_, count=end - start, offset=start)
        return Sample(ids, trained, self._row_ids[number], self._weights.get(number))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Sample]:
        return (self[number] for number in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample."""
        ends = np.frombuffer(self._ends, dtype=np.int64)
        return ends[1:] - ends[:-1]

    def add(self, sample: Sample) -> None:
        """Keep one sample."""
        if sample.weights is not None:
            self._weights[len(self)] = tuple(sample.weights)
        self._ids.extend(sample.ids)
        self._trained.extend(bytes(bytearray(map(bool, sample.trained))))
        self._ends.append(len(self._ids))
        self._row_ids.append(sample.row_id)
        self.report.samples += 1
        self.report.tokens_total += len(sample.ids)
        self.report.tokens_trained += sum(map(bool, sample.trained[1:]))

    def fingerprint(self) -> dict[str, Any]:
        """What tells these samples from others: their counts, and the SHA-256 of ids and trained places."""
        digest = hashlib.sha256()
        for content in (self._ids, self._trained, self._ends):
            digest.update(memoryview(content).cast("B"))
        for number in sorted(self._weights):
            digest.update(repr((number, self._weights[number])).encode())
        counts = {"samples": len(self), "tokens": self.report.tokens_total, "trained": self.report.tokens_trained}
        return {"rows": self.report.rows_kept, **counts, "sha256": digest.hexdigest()}

    def parted(self, share: float) -> tuple[EncodedSamples, EncodedSamples]:
        """All but the last ``share`` of the samples, and those: for a source whose only row is one long document."""
        cut = len(self) - max(1, int(len(self) * share)) if len(self) > 1 else 1
        parts = EncodedSamples(), EncodedSamples()
        for number, sample in enumerate(self):
            parts[number >= cut].add(sample)
        parts[0].report.rows_read = self.report.rows_read
        parts[0].report.rows_kept = parts[0].report.rows_split = 1
        return parts

    @property
    def highest_id(self) -> int:
        """Largest token id, or -1."""
        return int(np.frombuffer(self._ids, dtype=np.int32).max()) if self._ids else -1


def encode(
    dataset: Dataset,
    indices: Iterable[int],
    objective: Objective,
    *,
    max_len: int,
    truncation: str,
    columns: Mapping[str, str],
) -> EncodedSamples:
    """Encode the rows at ``indices``. Raises ``DataError`` for a row that is too long, or when nothing is left."""
    samples = EncodedSamples()
    report = samples.report
    for index in indices:
        report.rows_read += 1
        encoded = objective.encode(renamed(dataset.row(int(index)), columns))
        if isinstance(encoded, Sample) and not any(encoded.trained[1:]):
            encoded = Rejected("no trained token", encoded.row_id)
        if isinstance(encoded, Rejected):
            report.rows_dropped[encoded.reason] += 1
            continue
        pieces = fit(encoded, max_len, truncation)
        report.rows_kept += 1
        report.rows_split += len(pieces) > 1
        for piece in pieces:
            samples.add(piece)
    return samples


def renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """The row under our field names; ``columns`` maps ours to theirs. Raises ``DataError`` for a name that is not there."""
    if not columns:
        return row
    values: dict[str, Any] = {key: value for key, value in row.items() if key not in columns.values()}
    for ours, theirs in columns.items():
        if theirs not in row:
            fields = [key for key in row if key != "id"]
            raise DataError(
                f"{row['id']}: data.columns maps {ours!r} to {theirs!r}, which the row does not have."
                f" {did_you_mean(theirs, fields)}Its fields: {', '.join(fields)}."
            )
        values[ours] = row[theirs]
    return values


def fit(sample: Sample, max_len: int, truncation: str) -> list[Sample]:
    """The sample in pieces of ``max_len`` tokens at most.

    Pieces overlap by one token, which is context in the second piece, so that every trained token is predicted once.
    """
    length = len(sample.ids)
    if length <= max_len:
        return [sample]
    if truncation == "error":
        raise DataError(
            f"{sample.row_id}: {length} tokens exceed data.max_len={max_len}; raise --data.max-len and --train.sequence-len,"
            " shorten the row, or set --data.truncation split"
        )
    pieces = []
    for start in range(0, length - 1, max_len - 1):
        cut = slice(start, start + max_len)
        if any(sample.trained[cut][1:]):
            weights = None if sample.weights is None else sample.weights[cut]
            pieces.append(Sample(sample.ids[cut], sample.trained[cut], sample.row_id, weights))
    return pieces
