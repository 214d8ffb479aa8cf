"""From rows to samples: columns renamed, encoded by the objective, fitted to the longest length, counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mt_core.data.encoded import EncodedSamples
from mt_core.data.outcomes import outcomes
from mt_core.errors import DataError, did_you_mean
from mt_core.protocols import Dataset, Objective, Rejected, Row, Sample


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What holds for every row, whatever its source and objective (the ``data`` section)."""

    columns: Mapping[str, str] = field(default_factory=dict)
    max_len: int
    truncation: str


def encode(dataset: Dataset, indices: Iterable[int], objective: Objective, rules: Rules) -> EncodedSamples:
    """Encode the rows at ``indices``. Raises ``DataError`` for a row that is too long."""
    samples = EncodedSamples()
    report = samples.report
    for encoded in outcomes(lambda index: renamed(dataset.row(index), rules.columns), indices, objective):
        report.rows_read += 1
        if isinstance(encoded, DataError):
            raise encoded
        if isinstance(encoded, Sample) and not any(encoded.trained[1:]):
            encoded = Rejected("no trained token", encoded.row_id)
        if isinstance(encoded, Rejected):
            report.rows_dropped[encoded.reason] += 1
            continue
        pieces = fit(encoded, rules.max_len, rules.truncation)
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
