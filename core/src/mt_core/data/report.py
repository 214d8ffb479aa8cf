"""What became of the rows of a split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self


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

    @classmethod
    def total(cls, reports: Iterable[DataReport]) -> DataReport:
        """One report of several parts, in their order."""
        whole = cls()
        for report in reports:
            for each in fields(cls):
                setattr(whole, each.name, getattr(whole, each.name) + getattr(report, each.name))
        return whole

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """What ``as_dict`` gave, also out of JSON."""
        return cls(**{**stored, "rows_dropped": Counter(stored["rows_dropped"])})

    def describe(self) -> str:
        """One line for people."""
        share = 100 * self.tokens_trained / max(self.tokens_total, 1)
        dropped = "".join(f", {count} dropped ({reason})" for reason, count in self.rows_dropped.items())
        cut = f", {self.rows_split} split into {self.samples} samples" if self.rows_split else ""
        rows = "1 row" if self.rows_kept == 1 else f"{self.rows_kept:,} rows"
        return f"{rows}{cut}{dropped}, {self.tokens_total:,} tokens, {share:.1f}% trained on"
