from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

CALLS = count()


class Same:
    """A metric without a fault: is the prediction one of the references."""

    signature: Any = "exact"

    def __init__(self, config: Any) -> None:
        self.seen: set[str] = set()

    def score(self, prediction: str, references: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
        return {"exact": float(prediction in references)}

    def total(self, scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        return {"exact": sum(each["exact"] for each in scores) / len(scores) if scores else 0.0}


class Remembers(Same):
    def score(self, prediction: str, references: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
        self.seen.add(prediction)
        return {"exact": float(len(self.seen))}


class Drifts(Same):
    def total(self, scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        return {"exact": float(next(CALLS))}


class Wordy(Same):
    """Divides by the words of the prediction."""

    def score(self, prediction: str, references: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
        return {"exact": 1.0 / len(prediction.split())}


class Referring(Same):
    def score(self, prediction: str, references: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
        return {"exact": max(float(prediction == each) for each in references)}


class Named(Same):
    def score(self, prediction: str, references: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
        return {"ROUGE-L": 0.0}


class Mean(Same):
    def total(self, scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        return {"exact": sum(each["exact"] for each in scores) / len(scores)}


class Spread(Same):
    """Has a deviation where there are two rows."""

    def total(self, scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        return super().total(scores) | ({"deviation": 0.0} if len(scores) > 1 else {})


class Unsigned(Same):
    signature = ""


class Changes(Same):
    def score(self, prediction: str, references: Any, row: Any) -> dict[str, Any]:
        row.update(scored=True)
        return super().score(prediction, references, row)


class Sorts(Same):
    def total(self, scores: Any) -> dict[str, Any]:
        scores.sort(key=lambda each: each["exact"])
        return super().total(scores)


class Newest(Same):
    def total(self, scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        return {"exact": scores[-1]["exact"] if scores else 0.0}


class Hoards(Same):
    """Adds a total to the one before it."""

    def total(self, scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        self.all = [*getattr(self, "all", []), *scores]
        return super().total(self.all)
