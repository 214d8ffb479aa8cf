"""Base of rewards: what an answer is, and what a reward says of it. Torch is not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import Field

from mt_core import Message, MtConfig

if TYPE_CHECKING:
    from mt_train import Policy


@dataclass(frozen=True)
class Answer:
    """An answer of the model to a prompt.

    ``ids`` are its tokens, with the end token where it has one; ``finish`` says why it ended (``eos``, ``stop``, ``length``,
    ``context``). ``row`` is the row of the prompt with all of its fields, and ``group`` the number of the prompt in the iteration.
    ``prompt`` are the turns that are answered, and ``prompt_ids`` their tokens, as the model has read them. Where the model called
    tools, ``turns`` are its turns with their ``tool_calls``, and between them the results (role ``tool``); ``text`` is that of the last
    turn then, and ``ids`` are the model's own tokens of all turns.
    """

    text: str
    ids: Sequence[int]
    finish: str
    row: Mapping[str, Any]
    group: int
    prompt: Sequence[Message] = ()
    prompt_ids: Sequence[int] = ()
    turns: Sequence[Message] = ()


class RewardOptions(MtConfig):
    """Options that every reward has."""

    weight: float = Field(
        1.0, ge=-1000, le=1000, description="factor of the reward in the sum of all; 0 only reports it"
    )


class Reward(Protocol):
    """Scores answers. A score is any number, or ``None`` for an answer that cannot be scored: it is counted, and is no 0.

    It may have a ``weight``, what it counts in the sum (else 1), a ``timeout``, the longest that ``score`` may take (seconds; else
    the ``score_timeout`` of the run), and a ``file``, the user's, whose last line an error names (a path as in tracebacks).
    """

    def score(self, answers: Sequence[Answer]) -> Sequence[float | None]:
        """Return a score for each answer. It is called on rank 0 alone."""
        ...


@runtime_checkable
class ScoresTogether(Protocol):
    """A reward that all ranks compute: called in the place of ``score``, where a reward has it."""

    def score_together(self, answers: Sequence[Answer], policy: Policy) -> Sequence[float | None]:
        """Return a score for each answer, the same on every rank. Every rank calls it with all answers, and what it raises, all raise."""
        ...
