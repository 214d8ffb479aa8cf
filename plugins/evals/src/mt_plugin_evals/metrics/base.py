"""Metrics as evaluations see them: of answers, and of held-out tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from mt_core import Row, Sample
from mt_core.evaluation import TokenValues


class Metric(Protocol):
    """Scores predictions. ``signature`` says how its figures are computed, version of the library included; it is written beside them."""

    @property
    def signature(self) -> str: ...

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """Figures of one prediction, beside every text that would be right."""
        ...

    def total(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """Figures over all rows, from what ``score`` said of each in order: a corpus figure is no mean of those of its rows."""
        ...


@runtime_checkable
class TokenMetric(Protocol):
    """Scores the trained tokens of held-out rows, from what the model gave to each: others compute it from preprocessed logits.

    ``top`` is how many of the likeliest tokens it wants at each place.
    """

    signature: str
    top: int

    def score_tokens(self, sample: Sample, values: TokenValues) -> Mapping[str, float]:
        """Figures of one sample, often sums with their counts."""
        ...

    def total_tokens(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """Figures over all samples, from what ``score_tokens`` said of each in order."""
        ...
