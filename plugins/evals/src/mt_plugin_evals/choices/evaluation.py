"""The evaluation of questions with choices: scores, who is right, and tables by subject and category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mt_core import DataError, Tokenizer
from mt_core.evaluation import Continuation, Findings, Score, Subject

from ..pairs import PairEncoder
from .answers import Answer, judge
from .forms import Form
from .questions import Question
from .requests import QuestionRequests, Requests, ask
from .shots import Shots
from .tables import summarize


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """Questions, and their form. ``unanswered`` rows were left out; ``categories`` are groups of groups; ``unconditional`` is the text
    after which choices are scored by themselves, for ``accuracy_pmi``."""

    questions: Sequence[Question]
    form: Form
    shots: Shots
    unanswered: int = 0
    too_long: Literal["error", "skip"] = "error"
    unconditional: str | None = None
    categories: Mapping[str, str] = field(default_factory=dict)


class ChoiceEvaluation:
    """Takes the choice whose text has the highest log-probability after the question (the first of equals)."""

    spare = 0
    """Tokens of the context that are left beside a question with its choices."""

    def __init__(self, question_set: QuestionSet) -> None:
        self._question_set = question_set
        for (
            question
        ) in question_set.questions:  # faults of prompts and shots come before the first forward, and before a run
            question_set.form.description_of(question)
            for each in (question, *question_set.shots.of(question)):
                question_set.form.shot_of(each)

        self._kept: tuple[Tokenizer, int, Requests] | None = None

    def check(self, subject: Subject) -> None:
        """Encode what will be asked. Raises ``DataError`` for questions that do not fit."""
        self._requests(subject)

    def run(self, subject: Subject) -> Findings:
        """Score all choices, those of one question after one another: they share its context, and a subject's questions their shots."""
        requests = self._requests(subject)
        answers = score_answers(requests.asked, self._question_set, subject)
        counts = counts_of(self._question_set, requests)
        return summarize(answers, self._question_set.categories, counts, letters=self._question_set.form.letters)

    def _requests(self, subject: Subject) -> Requests:
        """Return what is asked of a subject; in a training it is encoded once, and asked at each evaluation.

        Raises ``DataError`` where none of the questions fits.
        """
        kept, question_set = self._kept, self._question_set
        if kept is not None and kept[0] is subject.tokenizer and kept[1] == subject.max_seq_len:
            return kept[2]
        requests = ask(
            question_set.questions,
            question_set.form,
            question_set.shots,
            subject,
            too_long=question_set.too_long,
            spare=self.spare,
        )
        if not requests.asked:
            raise DataError(
                f"all {requests.too_long} questions are longer than the context of {subject.max_seq_len} tokens, so there is nothing to"
                " ask. Take a model with a longer one."
            )
        self._kept = (subject.tokenizer, subject.max_seq_len, requests)
        return requests


def score_answers(asked: Sequence[QuestionRequests], question_set: QuestionSet, subject: Subject) -> list[Answer]:
    """Return how each question was answered by scores."""
    pairs = [pair for each in asked for pair in each.pairs]
    alone = _unconditional_continuations(asked, question_set, subject)
    scores = subject.score([*pairs, *alone])
    own, base = iter(scores[: len(pairs)]), iter(scores[len(pairs) :])
    return [judge(each, _take(own, each), _take(base, each) if alone else None) for each in asked]


def counts_of(question_set: QuestionSet, requests: Requests) -> dict[str, int]:
    """Return what did not enter the figures, by name."""
    return {
        "dropped_shots": requests.dropped_shots,
        "too_long": requests.too_long,
        "unanswered": question_set.unanswered,
    }


def _unconditional_continuations(
    asked: Sequence[QuestionRequests], question_set: QuestionSet, subject: Subject
) -> list[Continuation]:
    if question_set.unconditional is None:
        return []
    encoder = PairEncoder(subject.tokenizer, subject.eos_ids)
    texts = [(question_set.unconditional, target) for each in asked for target in each.targets]
    return encoder.pairs(texts, alone=question_set.form.alone)


def _take(scores: Any, asked: QuestionRequests) -> list[Score]:
    return [next(scores) for _ in asked.pairs]
