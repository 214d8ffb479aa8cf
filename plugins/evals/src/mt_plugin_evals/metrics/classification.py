"""Labels that answers name, and figures of classification by scikit-learn (https://scikit-learn.org)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from mt_core import DataError, MtConfig, Row

from ..extras import package
from .totals import Scores, resampled_errors, standard_error

UNREAD = -1

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
"""Letters of scripts that put no space between words: Thai, Lao, Myanmar, Khmer, kana and Han (classes SA and ID of
https://www.unicode.org/reports/tr14/)."""
_WORD_END = rf"(?:(?<=[{_SPACELESS}])|(?![^\W{_SPACELESS}]))"
"""No letter behind a label goes on with its word. Where a script has no spaces, nothing tells, and the label ends where it ends."""


class ClassificationConfig(MtConfig):
    """Labels, and how they are read."""

    labels: tuple[str, ...] = Field(min_length=2, description="labels that an answer may name (A,B)")
    positive: str | None = Field(
        None, description="label whose own precision, recall and F1 are given beside the means"
    )
    pattern: str | None = Field(
        None, description="regular expression whose first group is the label; none: the answer begins with it"
    )
    bootstrap: int = Field(0, ge=0, description="resamplings for standard errors of all but the accuracy; 0: none")

    @field_validator("labels", mode="before")
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        """``A,B`` stands for two labels."""
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        folded = [label.strip().casefold() for label in self.labels]
        if len(set(folded)) < len(folded) or "" in folded:
            raise ValueError(
                f"labels {', '.join(self.labels)} are empty or the same but for capitals; give different ones"
            )
        if self.positive is not None and self.positive not in self.labels:
            raise ValueError(
                f"positive {self.positive!r} is none of the labels {', '.join(self.labels)}; name one of them"
            )
        try:
            groups = 1 if self.pattern is None else re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r} is no regular expression ({error}); correct it") from error
        if groups < 1:
            raise ValueError(f"pattern {self.pattern!r} has no group; put the label in parentheses")
        return self


class Classification:
    """Accuracy, precision, recall, F1 and Matthews' correlation of the labels that answers name; see ``Metric``.

    An answer that names none is wrong, and counted as ``unread``. Where a denominator is 0, so is the figure.
    """

    def __init__(self, config: ClassificationConfig) -> None:
        from importlib.metadata import version  # here: importing it takes a while, and most runs need none

        self._config = config
        self._sklearn = package("sklearn.metrics", extra="metrics", user="the metric classification")
        self._places = {label.strip().casefold(): at for at, label in enumerate(config.labels)}
        ordered = sorted(self._places, key=len, reverse=True)
        # as few signs before it as can be: those of "-1" belong to the label where both it and "1" are labels
        self._begin = re.compile(rf"\W*?({'|'.join(map(re.escape, ordered))}){_WORD_END}")
        how = "the answer begins with it" if config.pattern is None else f"pattern {config.pattern}"
        self.signature = f"scikit-learn {version('scikit-learn')}, labels {','.join(config.labels)}, {how}"

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """See ``Metric``. Raises ``DataError`` for a reference that is no label, and where there are several."""
        wanted = {self._places.get(reference.strip().casefold(), UNREAD) for reference in references}
        if len(wanted) > 1 and UNREAD not in wanted:
            raise DataError(
                f"{row['id']}: the references {' / '.join(references)[:80]!r} are several labels, and the metric classification takes"
                " one; leave the metric out, or give one label"
            )
        if UNREAD in wanted:
            raise DataError(
                f"{row['id']}: the reference {' / '.join(references)[:80]!r} is not one of the labels {', '.join(self._config.labels)}"
            )
        said, expected = self._read(prediction), wanted.pop()
        correct, unread = float(said == expected), float(said == UNREAD)
        return {"accuracy": correct, "unread": unread, "label": float(said), "expected": float(expected)}

    def _read(self, text: str) -> int:
        folded = text.casefold()
        if self._config.pattern is not None:
            found = re.search(self._config.pattern, text)
            return UNREAD if found is None else self._places.get((found[1] or "").strip().casefold(), UNREAD)
        begun = self._begin.match(folded)
        return UNREAD if begun is None else self._places[begun[1]]

    def total(self, scores: Scores) -> Mapping[str, float]:
        """See ``Metric``."""
        figures = self._figures(scores)
        errors = resampled_errors(self._figures, scores, times=self._config.bootstrap)
        for name in ("accuracy", "unread"):
            if (error := standard_error([row[name] for row in scores])) is not None:
                errors[f"{name}_stderr"] = error
        return {**figures, **errors}

    def _figures(self, scores: Scores) -> dict[str, float]:
        said = [int(row["label"]) for row in scores]
        expected = [int(row["expected"]) for row in scores]
        labels = list(range(len(self._config.labels)))
        figures = {
            "accuracy": float(self._sklearn.accuracy_score(expected, said)),
            "mcc": float(self._sklearn.matthews_corrcoef(expected, said)),
            "unread": said.count(UNREAD) / len(said),
        }
        wishes: list[tuple[str, list[int], str | None]] = [("macro", labels, "macro"), ("weighted", labels, "weighted")]
        if self._config.positive is not None:
            wishes.append(("positive", [self._config.labels.index(self._config.positive)], "macro"))
        for name, among, average in wishes:
            values = self._sklearn.precision_recall_fscore_support(
                expected, said, labels=among, average=average, zero_division=0.0
            )
            figures |= {f"{figure}_{name}": float(value) for figure, value in zip(_FIGURES, values[:3], strict=True)}
        return figures


_FIGURES = ("precision", "recall", "f1")
