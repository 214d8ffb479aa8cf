"""Counts of what each source of a mixed dataset gives: rows that are kept, their tokens, and those that are trained on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol, runtime_checkable

from mt_core.protocols import Dataset
from mt_train.data.row_statistics import RowStatistics


@runtime_checkable
class _Mixed(Protocol):
    """A dataset of several sources, as ``Dataset`` says."""

    def sources(self) -> Sequence[tuple[str, int]]:
        """Return name and number of rows of each source, in the order of the indices."""
        ...


class SourceCounts:
    """Adds to a new report what came of each row, by its source; nothing where the dataset has but one."""

    def __init__(self, dataset: Dataset, report: RowStatistics) -> None:
        self._report, self._before = report, (0, 0, 0, 0)
        sources = dataset.sources() if isinstance(dataset, _Mixed) else ()
        self._names = [name for name, _ in sources]
        self._ends = list(accumulate(rows for _, rows in sources))

    def count(self, index: int) -> None:
        """Count what the report has gained since the last call as the source's whose row has this index."""
        if not self._names:
            return
        name, report, now = self._names[bisect_right(self._ends, index)], self._report, self._totals()
        rows, tokens, trained, samples = (after - before for after, before in zip(now, self._before, strict=True))
        report.source_rows[name] += rows
        report.source_tokens[name] += tokens
        report.source_trained[name] += trained
        if samples:
            runs = report.source_samples
            before = runs.pop()[1] if runs and runs[-1][0] == name else 0
            runs.append((name, before + samples))
        self._before = now

    def _totals(self) -> tuple[int, int, int, int]:
        report = self._report
        return report.rows_kept, report.tokens_total, report.tokens_trained, report.samples
