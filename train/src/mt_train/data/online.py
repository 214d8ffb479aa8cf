"""Objectives that learn from answers of the model itself: what the trainer asks of one, and gives to it. Imports no torch.

Shapes: B rows, T tokens, D model width, n trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from mt_core.evaluation import Subject
from mt_core.generation import Generation, GenerationConfig
from mt_core.rows import Encoded, Row, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from mt_core.nn import Batch

Record = Mapping[str, Any]
"""An answer as plain data, for a line of JSON."""
Measure = Callable[["Tensor", "nn.Module", "Batch"], Mapping[str, "Tensor"]]
"""(B, T, D), the head and the batch -> for each name (n,): values of the trained tokens."""
View = Literal["live", "reference"]
Weights = Literal["auto", "live", "copy"]
T = TypeVar("T")
Item = TypeVar("Item")


class Prompt(NamedTuple):
    """A row of the dataset, and the ids from the objective's ``encode``."""

    row: Row
    ids: Sequence[int]


class Policy(Subject, Protocol):
    """The model of a run, on any layout, for objectives that collect answers. Its texts end where turns of the template do: ``eos_ids``
    are also the template's ``stop_ids``, and its ``stop_text`` is a stop text.

    Every rank must make the same calls in the same order, and gets the same results, so a caller needs no rank.
    """

    version: int
    """Another number in each iteration: weights with the same number are the same."""

    def generate(
        self, prompts: Sequence[Sequence[int] | Encoded], config: GenerationConfig, *, weights: Weights = "live"
    ) -> list[Generation]:
        """See ``Subject``; with the weights that are trained (``live``), or those of a ``copy`` on each rank, which is filled once for
        each version. ``auto`` takes the copy where a rank cannot run the model alone, and has room for it."""
        ...

    def measure(
        self, samples: Sequence[Sample], measure: Measure, *, view: View = "live"
    ) -> list[Mapping[str, NDArray[np.float64]]]:
        """Give for each sample the values of its trained tokens, in their order, without gradient and dropout.

        ``reference`` is the model of step 0: the base under an adapter that leaves it as it is, else a copy on each rank.
        """
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole weights one at a time under their names in a checkpoint, with the adapter merged. Collective: walk to the end.

        Raises ``UsageError`` for an adapter that weights cannot stand for.
        """
        ...

    def once(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0 alone, and return on every rank what it gave: plain data. An error of its is one on all ranks."""
        ...

    def divide(self, items: Sequence[Item], function: Callable[[Sequence[Item]], Sequence[T]]) -> list[T]:
        """Call a function on each rank with a share of the items, and return on every rank what it gave for each: plain data.

        Every rank gives the same items, and an error on one is one on all.
        """
        ...


@runtime_checkable
class CollectsAnswers(Protocol):
    """An objective whose rows are prompts. Training runs in iterations: collect answers, then learn from them.

    ``prompts`` are those of an iteration, in the order of the dataset; ``passes`` is how often its answers are learned from, each time
    in ``updates`` optimizer steps. An answer has at most ``max_new_tokens``. A prompt's sample has no trained token.

    One that has ``seconds``, name → seconds of the last ``collect``, has ``NAME_seconds`` in the record of an iteration's first step.
    """

    prompts: int
    max_new_tokens: int
    updates: int
    passes: int

    def collect(
        self, prompts: Sequence[Prompt], policy: Policy, *, seed: int, previous: Sequence[Record]
    ) -> Sequence[Record]:
        """Write answers and score them. Every rank asks the same, and gets the same; ``seed`` is another one in each iteration.

        ``previous`` are the records of the iteration before, none in the first one and for held-out prompts: what an objective adapts
        from one iteration to the next follows from them, so that a run that goes on needs nothing else.
        """
        ...

    def learn(self, records: Sequence[Record]) -> tuple[Sequence[Sample], Mapping[str, float]]:
        """Make samples of what ``collect`` gave, and figures for the record; a pure function, also after a resume."""
        ...


@runtime_checkable
class ComparesAnswers(Protocol):
    """An objective whose samples are so many answers to one prompt, each behind the prompt: a row has to hold all of them."""

    answers_in_sample: int


@runtime_checkable
class ReplaysAnswers(Protocol):
    """An objective that may learn from answers that another run wrote down, so that two runs learn from the same ones."""

    replay: Path | None
    """The folder of that run; ``None`` where answers are collected."""


@runtime_checkable
class TellsSeconds(Protocol):
    """An objective that collects answers, and tells how long its parts took. Seconds are no records: these are the same in every run."""

    @property
    def seconds(self) -> Mapping[str, float]: ...
