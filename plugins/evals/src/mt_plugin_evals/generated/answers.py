"""Evaluation ``answers``: what the model writes to the rows of a dataset, by any metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mt_core import DataError, Dataset, Message, Row, Stream, conversation, is_conversation
from mt_core.evaluation import Findings, Subject
from mt_core.generation import GenerationConfig
from mt_core.media import MEDIA_MARK

from ..metrics.base import Metric
from .asking import (
    Answer,
    Prompt,
    ask,
    count_tokens,
    find_fitting,
    name_figures,
    prepare_rows,
    read_rows,
    refuse_no_texts,
    share,
    too_long_notes,
    turn_prompt,
)
from .config import AnswersConfig

_ASSISTANT = ("assistant", "gpt", "model", "function_call")
_ANSWERS = {"prompt": "response", "instruction": "output"}
"""Field of what is asked → field of its answer."""
_ANY = "-"
"""Answer of a row that has none, so that it has the shape of one that has."""


@dataclass(frozen=True)
class Question:
    """A row as it is asked: its turns without the last answer, and the texts that would be right."""

    row: Row
    turns: Sequence[Message]
    references: tuple[str, ...]

    @property
    def converses(self) -> bool:
        """Return whether it is a conversation, and no plain prompt."""
        return not all(turn.get("raw") for turn in self.turns)


class Answers:
    """Asks each row, and gives the answers to the metrics; see ``Evaluation``."""

    def __init__(self, config: AnswersConfig, rows: Dataset | Stream | None, metrics: Mapping[str, Metric]) -> None:
        self._config, self._rows, self._metrics = config, rows, metrics
        self.stop_texts = config.stop
        """A run refuses those that would never be found before its first step."""

    def check(self, subject: Subject) -> None:
        """Encode what will be asked. Raises ``DataError`` for rows without an answer or references, and prompts that do not fit."""
        questions, prompts = self._questions(subject)
        for chat in {question.converses for question in questions}:
            own = [prompt for question, prompt in zip(questions, prompts, strict=True) if question.converses == chat]
            find_fitting(subject, own)
        for question in questions:
            for metric in self._metrics.values():  # which may not be able to read what is right
                metric.score("", question.references, question.row)

    def run(self, subject: Subject) -> Findings:
        """See ``Evaluation``. Raises ``DataError`` for rows without an answer or references, before anything is written."""
        refuse_no_texts(subject, "answers")
        questions, prompts = self._questions(subject)
        answers = self._ask(subject, questions, prompts)
        figures: dict[str, float] = {}
        signatures: dict[str, str] = {}
        scores: list[dict[str, Any]] = [{} for _ in questions]
        for name, metric in self._metrics.items():
            found = [
                metric.score(answer.text, question.references, question.row)
                for answer, question in zip(answers, questions, strict=True)
            ]
            total = name_figures(name, metric.total(found))
            figures |= total
            signatures |= {figure: metric.signature for figure in total if not figure.endswith("_stderr")}
            for row, score in zip(scores, found, strict=True):
                row |= name_figures(name, score)
        figures["empty"] = share(answers, lambda answer: not answer.text.strip())
        figures["unfinished"] = share(answers, lambda answer: answer.is_cut)
        told = [_row(*parts) for parts in zip(questions, prompts, answers, scores, strict=True)]
        notes = too_long_notes(answers, subject.max_seq_len)
        return Findings(figures=figures, rows=told, signatures=signatures, notes=notes)

    def _questions(self, subject: Subject) -> tuple[list[Question], list[Prompt]]:
        """Return the rows as they are asked, and the prompt of each."""
        rows = prepare_rows(subject, read_rows(self._rows, self._config.limit))
        questions = [question_of(row, self._config.references) for row in rows]
        return questions, [turn_prompt(subject, question.turns, question.row["id"]) for question in questions]

    def _ask(self, subject: Subject, questions: Sequence[Question], prompts: Sequence[Prompt]) -> list[Answer]:
        config = GenerationConfig(
            rules=self._config.rules,
            max_new_tokens=self._config.max_new_tokens,
            stop=self._config.stop,
            seed=self._config.seed,
        )
        answers: list[Answer | None] = [None] * len(prompts)
        for chat in (False, True):
            places = [at for at, question in enumerate(questions) if question.converses == chat]
            written = ask(subject, [prompts[at] for at in places], config, chat=chat) if places else []
            for at, answer in zip(places, written, strict=True):
                answers[at] = answer
        return [answer for answer in answers if answer is not None]


def question_of(row: Row, field: str) -> Question:
    """Take a row apart. Raises ``DataError`` for one that says nothing of what is right, or asks nothing."""
    given = row.get(field)
    own = [given] if isinstance(given, str) else given
    if own is not None and not (isinstance(own, list) and own and all(isinstance(text, str) for text in own)):
        raise DataError(
            f"{row['id']}: field {field!r} must be a text or a list of at least one, got {str(given)[:80]!r}"
        )
    if own is None and "prompt" in row and not is_conversation(row):
        raise _no_reference(row, field)
    *asked, last = conversation(row if own is None else _complete(row))
    if last["role"] != "assistant":
        raise _no_reference(row, field)
    references = tuple(own or ([last["content"]] if isinstance(last.get("content"), str) else []))
    if not references:
        raise _no_reference(row, field)
    if not asked:
        raise DataError(f"{row['id']}: the row has an answer and nothing that is asked; add a prompt")
    return Question(row, asked, references)


def _complete(row: Row) -> Row:
    """The row with some answer at its end, where it has none: its references say what is right."""
    answer = {"role": "assistant", "content": _ANY}
    if not is_conversation(row):
        if isinstance(turns := row.get("prompt"), list):  # as rows to learn from rewards have it
            return {**{key: value for key, value in row.items() if key != "prompt"}, "messages": [*turns, answer]}
        if name := next((each for each in _ANSWERS if each in row), None):
            return {**row, _ANSWERS[name]: _ANY}
    for name in ("messages", "conversations"):
        turns = row.get(name)
        last = turns[-1] if isinstance(turns, list) and turns else None
        if isinstance(last, Mapping) and last.get("role", last.get("from")) not in _ASSISTANT:
            return {**row, name: [*(turns or ()), answer]}
    return row


def _no_reference(row: Row, field: str) -> DataError:
    return DataError(
        f"{row['id']}: the row has neither an answer of its own nor a field {field!r}; fields found:"
        f" {', '.join(repr(key) for key in row if key != 'id')[:200] or 'none'}. Name the one that says what is right"
        " (--evaluations.answers.references NAME)"
    )


def _show(turn: Message) -> Any:
    """The text of a turn, in which each part that is no text is told by its kind."""
    first, *others = str(turn["content"]).split(MEDIA_MARK) if turn.get("media") else [turn["content"]]
    pairs = zip(turn.get("media", ()), others, strict=True)
    return first if not others else "".join([first, *(f"<{part.kind}>{text}" for part, text in pairs)])


def _row(question: Question, prompt: Prompt, answer: Answer, scores: Mapping[str, Any]) -> dict[str, Any]:
    asked = [{"role": turn["role"], "content": _show(turn)} for turn in question.turns]
    return {
        "id": question.row["id"],
        "asked": asked,
        "prompt_tokens": count_tokens(prompt),
        "references": list(question.references),
        "answer": answer.text,
        "finish": answer.finish,
        **scores,
    }
