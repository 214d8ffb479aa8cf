"""``samples.jsonl``: what the model wrote at each evaluation."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mt_tools.report.files import lines_of

MAX_STEPS = 20
"""The newest evaluations whose samples the page shows."""

MAX_PREDICTIONS = 20
"""Samples of one evaluation that the page shows."""

MAX_LETTERS = 2000
"""Letters of one text that the page shows."""


@dataclass(frozen=True)
class Prediction:
    """One continuation, beside what the data has."""

    row_id: str
    prompt: str
    expected: str
    text: str


@dataclass
class Predictions:
    """Samples by step, oldest first, and how many there were that are not kept."""

    by_step: OrderedDict[int, list[Prediction]] = field(default_factory=OrderedDict)
    left_out: int = 0
    unread: int = 0

    def add(self, line: str) -> None:
        """Take in the next line of the file."""
        try:
            content = json.loads(line)
            step = int(content["step"])
            sample = Prediction(*(shorten(content.get(key)) for key in ("row_id", "prompt", "expected", "text")))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            self.unread += 1
            return
        of_step = self.by_step.setdefault(step, [])
        if len(of_step) < MAX_PREDICTIONS:
            of_step.append(sample)
        else:
            self.left_out += 1
        if len(self.by_step) > MAX_STEPS:
            self.left_out += len(self.by_step.popitem(last=False)[1])

    def remarks(self) -> Iterator[str]:
        """Yield what a reader of the page has to know about the samples."""
        if self.left_out:
            yield (
                f"{self.left_out:,} older or further sample(s) are not shown: the page has the newest {MAX_STEPS}"
                f" evaluations with up to {MAX_PREDICTIONS} samples each; samples.jsonl has all"
            )
        if self.unread:
            yield f"{self.unread:,} line(s) of samples.jsonl are no sample and were left out"


def read_predictions(path: Path) -> Predictions:
    """The samples of a file; one that is missing is empty."""
    samples = Predictions()
    for line in lines_of(path):
        samples.add(line)
    return samples


def shorten(text: object) -> str:
    """Return a text with as many letters as the page shows."""
    whole = "" if text is None else str(text)
    left = len(whole) - MAX_LETTERS
    return whole if left <= 0 else f"{whole[:MAX_LETTERS]} … ({left:,} more letters)"
