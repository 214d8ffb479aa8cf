"""Base of rewards: what an answer is, and what a reward says of it. Torch is not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field

from mt_core import MtConfig


@dataclass(frozen=True)
class Answer:
    """An answer of the model to a prompt.

    ``ids`` are its tokens, with the end token where it has one; ``finish`` says why it ended (``eos``, ``stop``, ``length``,
    ``context``). ``row`` is the row of the prompt with all of its fields, and ``group`` the number of the prompt in the iteration.
    """

    text: str
    ids: Sequence[int]
    finish: str
    row: Mapping[str, Any]
    group: int


class RewardOptions(MtConfig):
    """Options that every reward has."""

    weight: float = Field(
        1.0, ge=-1000, le=1000, description="what it counts in the sum of all rewards; 0 only reports it"
    )


class Reward(Protocol):
    """Scores answers. A score is any number, or ``None`` for an answer that cannot be scored: it is counted, and is no 0."""

    def score(self, answers: Sequence[Answer]) -> Sequence[float | None]:
        """Return a score for each answer."""
        ...
