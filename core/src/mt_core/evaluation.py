"""Evaluations: what asks questions of a model and makes figures of its answers, and the model as an evaluation sees it.

Torch is not imported. Shapes: n scored tokens, k tokens that are likeliest at a place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from pydantic import Field

from mt_core.components import Component
from mt_core.config.base import ANY, Layout, MtConfig
from mt_core.errors import ComponentError
from mt_core.generation import Generation, GenerationConfig
from mt_core.protocols import Template, Tokenizer
from mt_core.rows import Encoded, Row, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Continuation",
    "Evaluation",
    "EvaluationComponent",
    "EvaluationConfig",
    "Findings",
    "Score",
    "Subject",
    "TokenValues",
    "figure_prefix",
]

_FIGURE = re.compile(r"[a-z0-9_]+")


class Continuation(NamedTuple):
    """A request for the log-probability of ``target`` after ``context``. Both are token ids, and neither is empty."""

    context: Sequence[int]
    target: Sequence[int]


class Score(NamedTuple):
    """Log-probability of a whole target (nats), and whether each of its tokens is the likeliest one."""

    logprob: float
    greedy: bool


@dataclass(frozen=True)
class TokenValues:
    """Log-probabilities of the trained tokens of one sample, in order, before any sampling option."""

    logprobs: NDArray[np.float64]
    """(n,) nats of each token."""
    top_ids: NDArray[np.int64]
    """(n, k) the likeliest tokens at its place, best first."""
    top_logprobs: NDArray[np.float64]
    """(n, k) nats of those."""


class Subject(Protocol):
    """The model under evaluation: a loaded one, or the one in training, on any layout.

    Every rank must make the same calls in the same order, and gets all answers, so an evaluation needs no rank, device or layout. An
    answer does not depend on other requests.
    """

    tokenizer: Tokenizer
    template: Template
    """Writer of conversations: the run's, or the tokenizer's own."""
    max_seq_len: int
    """The longest context (tokens)."""
    eos_ids: tuple[int, ...]
    """Tokens that end a text."""
    texts: bool
    """Whether ``generate`` works on this layout."""

    def score(self, requests: Sequence[Continuation]) -> list[Score]:
        """Score each target after its context, in fp32. Raises ``UsageError`` for one that does not fit into the context."""
        ...

    def token_values(self, samples: Sequence[Sample], *, top: int = 1) -> list[TokenValues]:
        """Give the values of each sample's trained tokens; its first token has none, since nothing comes before it."""
        ...

    def generate(self, prompts: Sequence[Sequence[int] | Encoded], config: GenerationConfig) -> list[Generation]:
        """Continue each prompt: ids, or with media. Prompt i draws from a generator that (``config.seed``, i) decides."""
        ...

    def prepare(self, row: Row) -> Row:
        """Return a row as the run's objective gets it: its columns renamed, its media marked. Raises ``DataError``."""
        ...

    def encode(self, rows: Iterable[Row]) -> list[Sample]:
        """Make samples of rows as the run's objective does. Raises ``DataError`` for a row that it cannot use."""
        ...


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Results of an evaluation.

    ``figures`` are few, and go into the record as ``eval_EVALUATION_FIGURE``; ``groups`` are figures by subject, category and so on,
    ``rows`` one mapping a question (prompt, choices, log-probabilities, answer). ``signatures`` say how a figure was computed, where
    its name alone does not; ``notes`` are for people. Raises ``ComponentError`` for a name of a figure outside ``[a-z0-9_]``.
    """

    figures: Mapping[str, float]
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rows: Iterable[Mapping[str, Any]] = ()
    signatures: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in (*self.figures, *(name for figures in self.groups.values() for name in figures)):
            if not _FIGURE.fullmatch(name):
                raise ComponentError(f"{name!r} is no name of a figure; use lower-case letters, digits and '_'")


def figure_prefix(evaluation: str) -> str:
    """Return how the names of an evaluation's figures begin in a record, from the name that a run gives the evaluation."""
    return f"eval_{evaluation.rpartition('/')[2].replace('-', '_')}_"


class Evaluation(Protocol):
    """Asks a subject questions, and computes figures from the answers."""

    def run(self, subject: Subject) -> Findings:
        """Evaluate. It draws no random number but from generators of its own, and changes nothing but itself."""
        ...


class EvaluationConfig(MtConfig):
    """Options that every evaluation has."""

    every: int = Field(1, ge=1, description="in training, run only at every n-th evaluation of the run")


@dataclass(frozen=True, kw_only=True)
class EvaluationComponent(Component):
    """An evaluation. ``build(config, *, split, parts)`` returns an ``Evaluation``; ``split`` is ``train``: all rows of its datasets.

    ``needs`` is what it asks of a subject: ``scores`` work on every layout, ``texts`` not in a pipeline or with sequence parallelism.
    """

    needs: frozenset[Literal["scores", "texts"]]
    config: type[MtConfig] = EvaluationConfig
    layouts: frozenset[Layout] = ANY

    def __post_init__(self) -> None:
        super().__post_init__()
        if not issubclass(self.config, EvaluationConfig):
            raise ComponentError(
                f"the config of {self.name!r} is {self.config.__name__}; derive it from mt_core.evaluation.EvaluationConfig"
            )
