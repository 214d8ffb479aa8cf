"""Answer to one question, and by which measures it is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mt_core import WeightsError
from mt_core.evaluation import Score

from .requests import QuestionRequests

NOISE = 0.05
"""Nats between the two best choices under which another batch size or layout may turn an answer in bf16."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """``measures`` are 1 where the answer is right by a measure and 0 where it is not; ``mass`` is a probability."""

    asked: QuestionRequests
    scores: Sequence[Score]
    predicted: int
    measures: dict[str, float]

    @property
    def close(self) -> bool:
        """Return whether the two best choices are closer than the noise of bf16."""
        best, second = sorted((score.logprob for score in self.scores), reverse=True)[:2]
        return best - second < NOISE

    def row(self) -> dict[str, Any]:
        """Return the question with all that was found, for a file of rows."""
        question = self.asked.question
        prompts = self.asked.prompts
        return {
            "id": question.id,
            "group": question.group,
            "prompt": prompts[0] if len(set(prompts)) == 1 else list(prompts),
            "choices": list(self.asked.targets),
            "logprobs": [score.logprob for score in self.scores],
            "answer": sorted(question.right) if question.several else question.answer,
            "predicted": self.predicted,
            "shots": self.asked.shots,
            **self.measures,
        }


def judge(asked: QuestionRequests, scores: Sequence[Score], unconditional: Sequence[Score] | None) -> Answer:
    """Return the answer that the scores are.

    ``accuracy_norm`` and ``accuracy_bytes`` divide by the characters and UTF-8 bytes of a target without its delimiter, ``accuracy_pmi``
    takes off what a target is worth without the question, and ``mass`` is the share of the right choices, where several may be right.
    Raises ``WeightsError`` for a score that is not a number: the highest one of NaNs would be that of the first choice.
    """
    question = asked.question
    _require_finite(question.id, asked.targets, [*scores, *(unconditional or ())])
    logprobs = [score.logprob for score in scores]
    predicted = _first_best(logprobs)
    values = {
        "accuracy": logprobs,
        "accuracy_norm": [value / len(text) for value, text in zip(logprobs, asked.scored, strict=True)],
        "accuracy_bytes": [value / len(text.encode()) for value, text in zip(logprobs, asked.scored, strict=True)],
    }
    if unconditional is not None:
        values["accuracy_pmi"] = [value - base.logprob for value, base in zip(logprobs, unconditional, strict=True)]
    measures = {name: float(_first_best(each) in question.right) for name, each in values.items()}
    if question.several:
        measures["mass"] = _mass(logprobs, question.right)
    return Answer(asked=asked, scores=scores, predicted=predicted, measures=measures)


def _require_finite(question_id: str, targets: Sequence[str], scores: Sequence[Score]) -> None:
    for number, score in enumerate(scores):
        if not math.isfinite(score.logprob):
            raise WeightsError(
                f"{question_id}: the model's log-probability of {targets[number % len(targets)]!r} is {score.logprob}, which is no finite"
                " number, so that no choice is the likeliest. Its weights are broken, or overflow in this precision: try fp32 (--dtype"
                " fp32, in a run --train.dtype fp32), or another checkpoint."
            )


def _first_best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _mass(logprobs: Sequence[float], right: frozenset[int]) -> float:
    best = max(logprobs)
    shares = [math.exp(value - best) for value in logprobs]
    return sum(shares[place] for place in right) / sum(shares)
