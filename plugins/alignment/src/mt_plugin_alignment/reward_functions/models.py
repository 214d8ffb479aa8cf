"""Rewards that are models: a trained reward model, and a reward adapter over the base of the model that learns.

Torch is imported when one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from mt_core import DataError, UsageError, WeightsError

from .base import Answer, RewardOptions

if TYPE_CHECKING:
    from mt_train import Policy

    from ..scoring import Scorer

Scores = list[float | None]
Run = Callable[[Sequence[Any], Callable[[Sequence[Any]], list[Any]]], list[Any]]
RUN_FILE = "run.yaml"
"""File that every folder of a run has."""


class ModelRewardConfig(RewardOptions):
    """Where the model is, and how many answers it reads at once."""

    path: Path = Field(
        description="a run of --objective reward, or a folder of whole weights with a score head: what mt-convert or mt-export --merge"
        " wrote of one, or a reward model of transformers (AutoModelForSequenceClassification with one label)"
    )
    family: str | None = Field(
        None,
        description="model family of a folder of weights; default: the one that config.json names, or a run brings",
    )
    batch_size: int = Field(8, ge=1, description="answers that are read at once")


class AdapterRewardConfig(RewardOptions):
    """Where the adapter is, and how many answers it reads at once."""

    path: Path = Field(
        description="a run of --objective reward with an adapter, on the weights that this run is trained on"
    )
    batch_size: int = Field(8, ge=1, description="answers that are read at once")


class _ModelReward:
    """A reward that a model gives at the end of an answer.

    An answer that is too long for the model, or cannot be written down, has no score.
    """

    def __init__(self, *, weight: float, batch_size: int) -> None:
        self.weight, self._batch_size = weight, batch_size

    def score_by(self, scorer: Callable[[], Scorer], answers: Sequence[Answer], run: Run) -> Scores:
        """Score answers in batches that are the same whoever reads them, so that scores are the same on any number of ranks.

        ``run`` calls a function with all items, or on each rank with its share; ``scorer`` loads the model there when it is first
        needed, so that what fails on one rank ends all.
        """
        from ..scoring import batches

        encoded = run(answers, lambda share: [_ids(scorer(), answer) for answer in share])
        known = [number for number, ids in enumerate(encoded) if ids is not None]
        rows = [encoded[number] for number in known]
        groups = batches(rows, self._batch_size)
        scored = run(groups, lambda share: [scorer().score_ids([rows[number] for number in group]) for group in share])
        found: Scores = [None] * len(answers)
        for group, scores in zip(groups, scored, strict=True):
            for number, score in zip(group, scores, strict=True):
                found[known[number]] = score
        return found


class ModelReward(_ModelReward):
    """A reward model, loaded once on each rank when it is first asked; each rank reads its share of the answers."""

    def __init__(self, config: ModelRewardConfig) -> None:
        """Raise ``UsageError`` for a folder that is not there, or has no model."""
        super().__init__(weight=config.weight, batch_size=config.batch_size)
        self._path, self._family = config.path.expanduser(), config.family
        is_run = (self._path / RUN_FILE).is_file()
        if not self._path.is_dir():
            raise UsageError(f"--rewards.model.path {self._path} is no folder; give a run of --objective reward")
        if is_run and self._family is not None:
            raise UsageError(
                f"--rewards.model.path {self._path} is a run, which brings its own model; leave out family"
            )
        if not is_run and not any(self._path.glob("*.json")):
            raise UsageError(
                f"--rewards.model.path {self._path} has no model; give the folder of a run (with {RUN_FILE}), or one of whole"
                " weights with a score head (mt-convert, mt-export --merge, or transformers)"
            )

    def score(self, answers: Sequence[Answer]) -> Scores:
        """Score all answers here."""
        return self.score_by(lambda: self._scorer, answers, lambda items, function: function(items))

    def score_together(self, answers: Sequence[Answer], policy: Policy) -> Scores:
        """See ``ScoresTogether``."""
        return self.score_by(lambda: self._scorer, answers, policy.divide)

    @cached_property
    def _scorer(self) -> Scorer:
        from mt_train import load_run, load_weights

        from ..scoring import Scorer

        is_run, family = (self._path / RUN_FILE).is_file(), self._family
        loaded = load_run(self._path) if is_run else load_weights(family, self._path, objective="reward")
        loaded.model.eval().requires_grad_(False)
        return Scorer(loaded)


class AdapterReward(_ModelReward):
    """A reward adapter over the weights of the model that learns, of which there is no second copy."""

    def __init__(self, config: AdapterRewardConfig) -> None:
        super().__init__(weight=config.weight, batch_size=config.batch_size)
        self._path = config.path.expanduser()
        self._known: tuple[Policy, Scorer] | None = None

    def score(self, answers: Sequence[Answer]) -> Scores:
        """Raise ``UsageError``: the adapter stands over a model that learns."""
        raise UsageError(
            "reward adapter needs the model of a run; outside one, take --rewards model, which loads the weights, too"
        )

    def score_together(self, answers: Sequence[Answer], policy: Policy) -> Scores:
        """See ``ScoresTogether``. Raises ``UsageError`` where the run's weights cannot be the adapter's base."""
        return self.score_by(partial(self._scorer, policy), answers, policy.divide)

    def _scorer(self, policy: Policy) -> Scorer:
        from mt_train import load_over_base

        from ..scoring import Scorer

        if self._known is None or self._known[0] is not policy:
            try:
                loaded = load_over_base(self._path, policy)
            except (UsageError, WeightsError) as error:
                raise UsageError(
                    f"reward adapter: {error}. With --rewards model it is scored by weights of its own, which takes their memory"
                ) from error
            self._known = (policy, Scorer(loaded))
        return self._known[1]


def _ids(scorer: Scorer, answer: Answer) -> list[int] | None:
    """Return the tokens of a prompt with its answer; ``None`` where the model cannot read them.

    Raises ``DataError`` for a prompt that its template does not write.
    """
    try:
        ids = scorer.answer_ids(answer)
    except DataError:
        scorer.check_prompt(answer)  # else every answer would be without a score, and nobody knew why
        return None
    return ids if len(ids) <= scorer.max_seq_len else None
