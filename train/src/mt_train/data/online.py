"""Objectives that learn from answers of the model itself: what the trainer asks of one. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from mt_core.evaluation import Subject
from mt_core.rows import Row, Sample

Record = Mapping[str, Any]
"""An answer as plain data, which a line of JSON can keep."""


class Prompt(NamedTuple):
    """A row of the dataset, and what the objective's ``encode`` made of it."""

    row: Row
    ids: Sequence[int]


@runtime_checkable
class CollectsAnswers(Protocol):
    """An objective whose rows are prompts. Training is made of iterations: answers are collected, and learned from.

    ``prompts`` are those of an iteration, in the order of the dataset; ``passes`` is how often its answers are learned from, each time
    in ``updates`` optimizer steps. An answer has at most ``max_new_tokens``. A prompt's sample has no trained token.
    """

    prompts: int
    max_new_tokens: int
    updates: int
    passes: int

    def collect(self, prompts: Sequence[Prompt], subject: Subject, *, seed: int) -> Sequence[Record]:
        """Write answers and score them. Every rank asks the same, and gets the same; ``seed`` is another one in each iteration."""
        ...

    def learn(self, records: Sequence[Record]) -> tuple[Sequence[Sample], Mapping[str, float]]:
        """Make samples of what ``collect`` gave, and figures for the record; a pure function, also after a resume."""
        ...


@runtime_checkable
class TellsSeconds(Protocol):
    """What collects answers, and tells how long its parts took. Seconds are no records: these are the same in every run.

    ``seconds`` are those of the last ``collect``: ``score`` becomes the figure ``score_seconds`` of an iteration's first step.
    """

    @property
    def seconds(self) -> Mapping[str, float]: ...
