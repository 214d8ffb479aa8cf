"""Scores of answers by the rewards of a run: each checked, and a fault named with the reward it is of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from mt_core import ComponentError, MtConfig, MtError, first_line, notice
from mt_train import describe_failure

from .reward_functions.base import ScoresTogether
from .time_limit import TimeLimitReached, call_within

if TYPE_CHECKING:
    from mt_train import Policy

    from .reward_functions.base import Answer, Reward


def figure_of(name: str, prefix: str = "reward") -> str:
    """Return the name that a figure of this reward has in records."""
    return f"{prefix}_{name.replace('-', '_')}"


BadAnswers = dict[str, list[str]]
"""Faults of rewards in an iteration, by the name of the reward: an entry for each answer that it could not score."""


class ScoreOptions(MtConfig):
    """Bounds of rewards: how long one may take, and for how many answers it may fail."""

    score_timeout: float | None = Field(
        540.0,
        gt=0,
        description="longest that a reward may take for the answers of an iteration (seconds), less than --parallel.timeout-seconds;"
        " none: as long as it likes",
    )
    on_bad_score: Literal["error", "skip"] = Field(
        "error",
        description="a reward raises for an answer, or gives no finite number: end the run, or count the answer as unscored",
    )
    max_bad_scores: int = Field(
        8, ge=0, description="with skip, the run ends when a reward has more of them in an iteration (answers)"
    )


def score_answers(
    rewards: Mapping[str, Reward],
    answers: Sequence[Answer],
    policy: Policy,
    options: ScoreOptions | None = None,
    *,
    bad: BadAnswers | None = None,
) -> dict[str, list[float | None]]:
    """Return the scores of each reward, by name; ``None`` for an answer that it cannot score. Collective.

    ``bad`` counts the answers for which rewards have failed over all calls of an iteration; without it each call counts for itself.
    ``score`` runs on rank 0 alone, ``score_together`` on every rank. Raises ``ComponentError`` for a reward that raises, takes too
    long, gives another number of scores than there are answers, or a score that is no finite number: an infinite one would be the
    advantage of a whole group.
    """
    options, bad = options or ScoreOptions(), {} if bad is None else bad
    return {
        name: _scores(_Scoring(name, each, options, bad.setdefault(name, [])), answers, policy)
        for name, each in rewards.items()
    }


def _scores(scoring: _Scoring, answers: Sequence[Answer], policy: Policy) -> list[float | None]:
    reward = scoring.reward
    if isinstance(reward, ScoresTogether):
        return scoring.together(partial(reward.score_together, answers, policy), answers)
    return policy.once(partial(scoring.alone, answers))


class _Scoring:
    """One reward, asked and checked."""

    def __init__(self, name: str, reward: Reward, options: ScoreOptions, bad: list[str]) -> None:
        self.reward = reward
        self._name, self._options = name, options
        self._timeout: float | None = getattr(reward, "timeout", None) or options.score_timeout
        self._bad, self._earlier = bad, len(bad)

    def alone(self, answers: Sequence[Answer]) -> list[float | None]:
        """Ask the reward within its time, and check what it gives."""
        try:
            return self._checked(call_within(self._timeout, partial(self._found, answers)), answers)
        except TimeLimitReached as error:
            raise ComponentError(
                f"reward {self._name} has given no scores for {len(answers)} answers in {self._timeout:g} seconds. Let it give up by"
                " itself and return None, or give it longer: --objective.score-timeout SECONDS"
            ) from error

    def together(self, score: Any, answers: Sequence[Answer]) -> list[float | None]:
        """Check what a reward gives that all ranks compute."""
        try:
            found = self._listed(score(), answers)
        except MtError:
            raise
        except Exception as error:  # a reward's code may raise anything; whose it is has to be said
            raise self._failure(error) from error
        return self._checked(found, answers)

    def _found(self, answers: Sequence[Answer]) -> list[Any]:
        """Return what the reward gives; where single answers may be skipped, a NaN for each one for which it raises."""
        try:
            return self._listed(self.reward.score(answers), answers)
        except MtError:
            raise
        except Exception as error:  # as above
            if self._options.on_bad_score == "error":
                raise self._failure(error) from error
        return [self._one(answer) for answer in answers]

    def _listed(self, found: Any, answers: Sequence[Answer]) -> list[Any]:
        """Return the scores as a list. Raises ``ComponentError`` for one number, or nothing, in the place of a score for each answer."""
        if isinstance(found, Iterable):
            return list(found)
        raise ComponentError(
            f"reward {self._name} gives {found!r:.60} for {len(answers)} answers; it gets all answers at once, and has to give a list"
            " with a score for each, None where there is none"
        )

    def _one(self, answer: Answer) -> Any:
        try:
            (score,) = self.reward.score([answer])
        except MtError:
            raise
        except Exception as error:  # noqa: BLE001 - as above, and what was asked for
            self._count(f"{type(error).__name__}: {first_line(error)}, for an answer to {answer.row['id']}")
            return None
        return score

    def _failure(self, error: Exception) -> ComponentError:
        return ComponentError(
            f"reward {self._name} failed: {describe_failure(error, getattr(self.reward, 'file', None))}"
        )

    def _checked(self, found: Sequence[Any], answers: Sequence[Answer]) -> list[float | None]:
        """Return the scores. Raises ``ComponentError`` for what are none."""
        if len(found) != len(answers):
            raise ComponentError(
                f"reward {self._name} gives {len(found)} scores for {len(answers)} answers; give one for each, None where there is none"
            )
        numbers = [self._number(score, answer) for score, answer in zip(found, answers, strict=True)]
        if own := self._bad[self._earlier :]:
            notice(f"reward {self._name}: {len(own)} of {len(answers)} answers count as unscored (first: {own[0]})")
        return numbers

    def _number(self, score: Any, answer: Answer) -> float | None:
        if score is None:
            return None
        try:
            number = float(score)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
        if self._options.on_bad_score == "error":
            raise ComponentError(
                f"reward {self._name} gives {score!r} for an answer to {answer.row['id']}; a score is a finite number, or None where there"
                f" is none. The answer: {answer.text[:80]!r}"
            )
        self._count(f"{score!r} for an answer to {answer.row['id']}")
        return None

    def _count(self, what: str) -> None:
        """Count an answer as unscored. Raises ``ComponentError`` for one too many."""
        self._bad.append(what)
        if len(self._bad) > (most := self._options.max_bad_scores):
            raise ComponentError(
                f"reward {self._name} has failed for {len(self._bad)} answers of an iteration, and --objective.max-bad-scores is {most};"
                f" the first: {self._bad[0]}. Repair the reward, or allow more"
            )
