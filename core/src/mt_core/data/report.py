"""What became of the rows of a split."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


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
