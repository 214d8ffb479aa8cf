"""Requests for the choices of questions: prompts with their shots, as ids that fit into the context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from mt_core import DataError, UsageError
from mt_core.evaluation import Continuation, Subject

from ..pairs import PairEncoder, fits
from .forms import Form
from .questions import Question
from .shots import Shots

_BLOCK = 256
"""Questions whose texts are in memory at once."""


@dataclass(frozen=True, kw_only=True)
class QuestionRequests:
    """A question as it is asked: a prompt and a target for each choice, with and without the delimiter, and the shots that were left.

    Most questions have one prompt for all choices.
    """

    question: Question
    prompts: tuple[str, ...]
    targets: tuple[str, ...]
    scored: tuple[str, ...]
    pairs: tuple[Continuation, ...]
    shots: int


@dataclass(frozen=True, kw_only=True)
class Requests:
    """All that is asked. ``dropped_shots`` did not fit into the context, nor did ``too_long`` questions alone."""

    asked: list[QuestionRequests]
    dropped_shots: int
    too_long: int


def ask(
    questions: Iterable[Question],
    form: Form,
    shots: Shots,
    subject: Subject,
    *,
    too_long: Literal["error", "skip"],
    spare: int = 0,
) -> Requests:
    """Return the requests for a subject, with ``spare`` tokens of its context left.

    Where a prompt is longer than the context, shots drop from the front, and never the question. Raises ``UsageError`` for a question
    that does not fit alone, ``DataError`` for a choice that has no text or no tokens of its own.
    """
    most = subject.max_seq_len - spare
    encoder = PairEncoder(subject.tokenizer, subject.eos_ids)
    asked, dropped, left_out = [], 0, 0
    for block in _blocks(questions):
        wanted = [shots.of(question) for question in block]
        for question, examples, drafted in zip(block, wanted, _encode_block(block, wanted, form, encoder), strict=True):
            each = _fit(drafted, examples, form, encoder, most)
            if each is None and too_long == "error":
                raise _too_long(question, drafted, form, encoder, most, spare)
            if each is None:
                left_out += 1
                continue
            asked.append(_check_choices(each, form))
            dropped += len(examples) - each.shots
    return Requests(asked=asked, dropped_shots=dropped, too_long=left_out)


def _blocks(questions: Iterable[Question]) -> Iterator[list[Question]]:
    waiting = iter(questions)
    while block := list(islice(waiting, _BLOCK)):
        yield block


def _encode_block(
    block: Sequence[Question], shots: Sequence[Sequence[Question]], form: Form, encoder: PairEncoder
) -> Iterator[QuestionRequests]:
    """Encode a block of questions at once, since many tokenizers are faster so."""
    texts = [_texts(question, examples, form) for question, examples in zip(block, shots, strict=True)]
    pairs = iter(encoder.pairs([pair for each in texts for pair in each], alone=form.alone))
    for question, examples, each in zip(block, shots, texts, strict=True):
        prompts, targets = zip(*each, strict=True)
        own = tuple(islice(pairs, len(each)))
        scored = tuple(target[len(form.delimiter) :] for target in targets)
        yield QuestionRequests(
            question=question, prompts=prompts, targets=targets, scored=scored, pairs=own, shots=len(examples)
        )


def _texts(question: Question, shots: Sequence[Question], form: Form) -> list[tuple[str, str]]:
    """Return (prompt with all that stands before it, target with its delimiter) of each choice."""
    before = form.description_of(question) + "".join(map(form.shot_of, shots))
    places = range(len(question.choices))
    return [
        (before + form.prompt_of(question, place), form.delimiter + form.target_of(question, place)) for place in places
    ]


def _fit(
    asked: QuestionRequests, shots: Sequence[Question], form: Form, encoder: PairEncoder, max_seq_len: int
) -> QuestionRequests | None:
    """Return the question with as many of its last shots as fit; ``None`` where it does not fit without any."""
    kept = list(shots)
    while not all(fits(pair, max_seq_len) for pair in asked.pairs):
        if not kept:
            return None
        del kept[0]
        asked = next(_encode_block([asked.question], [kept], form, encoder))
    return asked


def _too_long(
    question: Question, asked: QuestionRequests, form: Form, encoder: PairEncoder, most: int, spare: int
) -> UsageError:
    alone = next(_encode_block([question], [[]], form, encoder)) if asked.shots else asked
    longest = max(len(pair.context) + len(pair.target) - 1 for pair in alone.pairs)
    own = f"{longest} tokens" if not spare else f"{longest} tokens and needs {spare} more to be answered"
    return UsageError(
        f"{question.id}: the question alone has {own}, and the context of the model {most + spare}. Take a model with a longer"
        " one, or leave such questions out with too-long skip; they are counted."
    )


def _check_choices(asked: QuestionRequests, form: Form) -> QuestionRequests:
    """Return the question, if its choices can be told apart.

    Raises ``DataError`` for one without text or tokens, ``UsageError`` for two alike.
    """
    if "" in asked.scored:
        raise DataError(
            f"{asked.question.id}: the target of choice {asked.scored.index('') + 1} is empty, so that there is nothing to score. Correct"
            " the row, or name fields that have a text with the option target of the evaluation."
        )
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {}
    for pair, target in zip(asked.pairs, asked.targets, strict=True):
        if not pair.target:
            raise DataError(
                f"{asked.question.id}: {target!r} has no token of its own behind the prompt: the prompt's last token takes it up. Set"
                " another delimiter or prompt."
            )
        other = seen.setdefault((tuple(pair.context), tuple(pair.target)), target)
        if other != target:
            raise UsageError(
                f"{asked.question.id}: {other!r} and {target!r} are the same tokens {list(pair.target)} for this tokenizer, so that their"
                f" scores are one. Ask for {'texts (target {choice})' if form.letters else 'letters (target {letter})'} instead."
            )
    return asked
