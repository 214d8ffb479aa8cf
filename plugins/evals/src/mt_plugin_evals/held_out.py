"""Held-out rows of several datasets, each under a name: metrics of what the model gave to their tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from mt_core import ComponentError, DataError, Dataset, PartChoice, Row, Sample, UsageError
from mt_core.evaluation import EvaluationConfig, Findings, Subject

from .metrics.base import TokenMetric
from .naming import named_dataset

_NAME = re.compile(r"[a-z0-9_]+")
_COUNTS = ("tokens", "samples")
"""Figures that say how much was looked at: in the table of sets alone."""
_BLOCK = 256
"""Samples whose values are in memory at once."""


class HeldOutConfig(EvaluationConfig):
    """Sets and metrics."""

    sets: dict[str, dict[str, Any]] = Field(
        min_length=1, description="name → dataset {name, options …}: rows that the run's objective can read"
    )
    metrics: tuple[dict[str, Any], ...] = Field(
        ({"name": "token-loss"}, {"name": "token-accuracy"}),
        min_length=1,
        description="metrics of tokens: {name, options …}, each",
    )
    limit: int | None = Field(None, ge=1, description="rows of each set, the first ones; without it all")

    @field_validator("sets")
    @classmethod
    def _sets_are_named(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, dataset in value.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is part of the names of figures; use lower-case letters, digits and '_'")
            named_dataset(dataset, f"sets.{name}")
        return value

    @field_validator("metrics")
    @classmethod
    def _metrics_are_named(cls, value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for number, metric in enumerate(value):
            if not isinstance(metric.get("name"), str):
                raise ValueError(f"metrics.{number} has no name; write {{name: token-loss}}")
        return value

    def parts(self) -> dict[str, PartChoice]:
        """Return the datasets, then the metrics."""
        sets = {f"sets.{name}": PartChoice.of(given, kind="dataset") for name, given in self.sets.items()}
        metrics = {f"metrics.{n}": PartChoice.of(given, kind="metric") for n, given in enumerate(self.metrics)}
        return {**sets, **metrics}


class HeldOut:
    """Encodes the rows as training does, and lets metrics look at the values of each trained token."""

    def __init__(self, config: HeldOutConfig, sets: Mapping[str, Dataset], metrics: Sequence[TokenMetric]) -> None:
        self._limit, self._sets, self._metrics = config.limit, sets, metrics
        self._signatures: dict[str, str] = {}
        self._top = max(metric.top for metric in metrics)
        for name, rows in sets.items():
            if not len(rows):
                raise DataError(f"set {name} has no rows, so there is nothing to ask. Check its dataset.")

    def check(self, subject: Subject) -> None:
        """Encode the rows of every set. Raises ``DataError`` for those that the objective cannot use, and what ``run`` does."""
        self._refuse_more_tokens(subject)
        for name in self._sets:
            self._encode(name, subject)

    def _refuse_more_tokens(self, subject: Subject) -> None:
        if self._top > (size := subject.tokenizer.size):
            raise UsageError(
                f"a metric of rows looks at the {self._top} likeliest tokens of a place, and the tokenizer has {size}. Lower it, as in"
                f" metrics: [{{name: token-accuracy, k: {size}}}]."
            )

    def run(self, subject: Subject) -> Findings:
        """Evaluate one set after another. Raises ``UsageError`` where a metric wants more tokens of a place than there are."""
        self._refuse_more_tokens(subject)
        figures: dict[str, float] = {}
        groups: dict[str, dict[str, float]] = {}
        found: list[dict[str, Any]] = []
        for name in self._sets:
            own, details = self._evaluate(name, subject)
            groups[f"set/{name}"] = own
            figures |= {f"{name}_{figure}": value for figure, value in own.items() if figure not in _COUNTS}
            found += details
        return Findings(figures=figures, groups=groups, rows=found, signatures=self._signatures)

    def _encode(self, name: str, subject: Subject) -> list[Sample]:
        """Return the samples of a set. Raises ``DataError`` that names it."""
        try:
            samples = [sample for sample in subject.encode(self._rows(self._sets[name])) if any(sample.trained[1:])]
        except DataError as error:
            raise DataError(f"set {name}: {error}") from error
        if not samples:
            raise DataError(f"set {name} has no token that is trained on, so there is nothing to ask. Check its rows.")
        return samples

    def _evaluate(self, name: str, subject: Subject) -> tuple[dict[str, float], list[dict[str, Any]]]:
        samples = self._encode(name, subject)
        scores: list[list[Mapping[str, float]]] = [[] for _ in self._metrics]
        for begin in range(0, len(samples), _BLOCK):
            block = samples[begin : begin + _BLOCK]
            values = subject.token_values(block, top=self._top)
            for metric, own in zip(self._metrics, scores, strict=True):
                own += [metric.score_tokens(sample, each) for sample, each in zip(block, values, strict=True)]
        tokens = sum(sum(map(bool, sample.trained[1:])) for sample in samples)
        figures = {**self._totals(scores), "tokens": tokens, "samples": len(samples)}
        return figures, [*_details(name, samples, scores)]

    def _rows(self, rows: Dataset) -> Iterator[Row]:
        count = len(rows) if self._limit is None else min(len(rows), self._limit)
        return (rows.row(index) for index in range(count))

    def _totals(self, scores: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
        figures: dict[str, float] = {}
        for metric, own in zip(self._metrics, scores, strict=True):
            total = metric.total_tokens(own)
            if twice := sorted(figures.keys() & total.keys()):
                raise ComponentError(
                    f"two metrics have a figure {twice[0]}, and there is one place for it. Leave one of them out."
                )
            figures |= total
            self._signatures |= dict.fromkeys(total, metric.signature)
        return figures


def _details(
    name: str, samples: Sequence[Sample], scores: Sequence[Sequence[Mapping[str, float]]]
) -> Iterator[dict[str, Any]]:
    for sample, each in zip(samples, zip(*scores, strict=True), strict=True):
        yield {"set": name, "id": sample.row_id, **{key: value for one in each for key, value in one.items()}}


def build_held_out(config: HeldOutConfig, *, split: str, parts: Sequence[Any]) -> HeldOut:
    """Build the evaluation. Raises ``ComponentError`` for a metric that looks at answers and not at tokens."""
    sets = dict(zip(config.sets, parts, strict=False))
    metrics = parts[len(sets) :]
    for given, metric in zip(config.metrics, metrics, strict=True):
        if not isinstance(metric, TokenMetric):
            raise ComponentError(
                f"metric {given['name']} scores answers, and rows have tokens: it has no score_tokens. Take token-loss, token-accuracy or"
                " one of your own."
            )
    return HeldOut(config, sets, metrics)
