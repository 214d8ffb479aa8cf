"""Rows with preferences as items: the chosen side and the rejected one, each a document that begins with the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mt_core import DataError, Rejected, Row, Sample, conversation
from mt_core.media import join_media

from .shapes import EQUAL, SIDES, is_empty, number_of, read_preference

if TYPE_CHECKING:
    from mt_core import Encoded, Message, Template

WHAT_A_SCORE_IS = "a row has prompt, response and a number that says how good that is"
PLACE = "place"
"""Token value: the number of a trained token in its answer."""
SYSTEM = "data.system"
"""Key of a system message that the template puts into every conversation, and that no turn of a row speaks for."""


def encode_pair(row: Row, template: Template, *, places: bool = False) -> Sample | Rejected:
    """The two sides of a row as one sample; only the assistant's turns of answers are trained on, whatever ``data.train_on`` says.

    ``places`` adds what ``places_of`` gives. See ``read_preference`` for rows that are
    rejected, or raise ``DataError``.
    """
    found = read_preference(row)
    if isinstance(found, Rejected):
        return found
    encoded = [_encode(template, found.prompt, turns) for turns in (found.chosen, found.rejected)]
    for side, each in zip(SIDES, encoded, strict=True):
        if not any(each.trained[1:]):
            return Rejected(f"{side!r} has no token of its own", row["id"])
        if each.weights is not None:
            raise DataError(
                f"{row['id']}: a turn of {side!r} has a weight, and answers of a pair are compared whole. Take it out."
            )
    if encoded[0].ids == encoded[1].ids and encoded[0].media == encoded[1].media:
        return Rejected(EQUAL, row["id"])
    prompts = [each.ids[: each.trained.index(True)] for each in encoded]
    if prompts[0] != prompts[1]:
        raise DataError(
            f"{row['id']}: the template writes the prompt of the two sides in different tokens ({len(prompts[0])} and {len(prompts[1])}),"
            " so that they cannot be compared. Choose another --data.template, or drop the row."
        )
    return item(encoded, row["id"], token_values=places_of(encoded) if places else {})


def encode_scored(row: Row, template: Template) -> Sample | Rejected:
    """A prompt with one answer and its ``score``, as a sample of one document. Raises ``DataError`` for a score that is no number."""
    score = number_of(row, "score", WHAT_A_SCORE_IS)
    *before, answer = conversation(row)
    if answer["role"] != "assistant" or is_empty(answer):
        return Rejected("'response' is empty", row["id"])
    return encode_answers(row["id"], template, before, [[answer]], {"score": [score]})


def encode_answers(
    row_id: str,
    template: Template,
    prompt: Sequence[Message],
    answers: Sequence[Sequence[Message]],
    document_values: Mapping[str, Sequence[float]],
) -> Sample | Rejected:
    """A prompt with each of some answers as one sample, of which only the assistant's turns of answers are trained on.

    Raises ``DataError`` for a turn with a weight: answers are read whole.
    """
    encoded = [_encode(template, prompt, turns) for turns in answers]
    if not all(any(each.trained[1:]) for each in encoded):
        return Rejected("an answer has no token of its own", row_id)
    if any(each.weights is not None for each in encoded):
        raise DataError(f"{row_id}: a turn of the answer has a weight, and answers are read whole. Take it out.")
    return item(encoded, row_id, document_values=document_values)


def item(
    documents: Sequence[Encoded],
    row_id: str,
    *,
    document_values: Mapping[str, Sequence[float]] | None = None,
    token_values: Mapping[str, Sequence[float]] | None = None,
) -> Sample:
    """Join encoded documents into one sample."""
    lengths = [len(each.ids) for each in documents]
    return Sample(
        [token for each in documents for token in each.ids],
        [on for each in documents for on in each.trained],
        row_id,
        None,
        lengths,
        document_values or {},
        token_values or {},
        join_media((each.media for each in documents), lengths),
    )


def _encode(template: Template, prompt: Sequence[Message], answer: Sequence[Message]) -> Encoded:
    before, turns = [_untrained(turn) for turn in prompt], list(map(_answer, answer))
    encoded = template.encode([*before, *turns])
    if SYSTEM not in template.additions:
        return encoded
    added = template.encode([*before, *map(_untrained, turns)]).trained  # with data.train_on: all
    return replace(encoded, trained=[on and not other for on, other in zip(encoded.trained, added, strict=True)])


def _answer(turn: Message) -> Message:
    """A turn of an answer: what a tool or a user says in between is never trained on, every turn of the assistant is."""
    return {"train": True, **turn} if turn["role"] == "assistant" else _untrained(turn)


def _untrained(turn: Message) -> Message:
    return {**turn, "train": False}


def places_of(documents: Sequence[Encoded]) -> dict[str, list[float]]:
    """Return a token value of documents, one behind the other: the number of a trained token in its answer, from 0."""
    found: list[float] = []
    for each in documents:
        count = 0
        for on in each.trained:
            found.append(float(count))
            count += on
    return {PLACE: found}
