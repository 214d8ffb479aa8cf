"""Encoded samples in compact arrays, and the report of how they came about.

A row is encoded once, at the start: 6 bytes a token, so that lengths, trained tokens and faults are known before the
first step.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt_core.data.report import DataReport
from mt_core.protocols import Sample


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

    @property
    def row_ids(self) -> list[str]:
        """The row of each sample."""
        return self._row_ids

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.int64]]:
        """All ids, which of them are trained on, and where samples end (after a 0). Nothing may be added while these are used."""
        ids, trained, ends = (np.frombuffer(memory, np.uint8) for memory in (self._ids, self._trained, self._ends))
        return ids.view(np.int32), trained.view(np.bool_), ends.view(np.int64)

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
        of_rows = (
            "rows_read",
            "rows_kept",
            "rows_dropped",
            "rows_split",
            "rows_truncated",
            "tokens_cut",
            "trained_cut",
        )
        for name in (*of_rows, "places", "bad_rows"):
            setattr(parts[0].report, name, getattr(self.report, name))
        return parts

    @property
    def highest_id(self) -> int:
        """Largest token id, or -1."""
        return int(np.frombuffer(self._ids, dtype=np.int32).max()) if self._ids else -1
