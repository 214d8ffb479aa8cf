"""Rows with preferences as items: the chosen side and the rejected one, each a document that begins with the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mt_core import DataError, Rejected, Row, Sample, conversation, preference

if TYPE_CHECKING:
    from mt_core import Encoded, Message, Template

EQUAL = "'chosen' and 'rejected' are the same"
SIDES = ("chosen", "rejected")


def encode_pair(row: Row, template: Template, *, places: bool = False) -> Sample | Rejected:
    """The two sides of a row as one sample; only the tokens of answers are trained on.

    ``places`` adds a token value ``place``: the number of a trained token in its answer, from 0. Rejected are rows whose sides are
    equal, or one of them empty. Raises ``DataError`` for a row that is no preference, or whose sides answer different prompts.
    """
    if row.get("chosen") is not None and row.get("chosen") == row.get("rejected"):
        return Rejected(EQUAL, row["id"])
    prompt, *sides = preference(row)
    for side, turns in zip(SIDES, sides, strict=True):
        if not prompt and turns[0]["role"] != "assistant":
            raise DataError(
                f"{row['id']}: 'chosen' and 'rejected' begin with different turns, so they answer different prompts. Give the prompt once"
                " ('prompt'), or the same first turns on both sides"
            )
        if any(_is_empty(turn) for turn in turns):
            return Rejected(f"{side!r} is empty", row["id"])
    before = [{**turn, "train": False} for turn in prompt]
    encoded = [_encode(row, template, [*before, *turns]) for turns in sides]
    for side, each in zip(SIDES, encoded, strict=True):
        if not any(each.trained[1:]):
            return Rejected(f"{side!r} has no token of its own", row["id"])
    if encoded[0].ids == encoded[1].ids:
        return Rejected(EQUAL, row["id"])
    prompts = [each.ids[: each.trained.index(True)] for each in encoded]
    if prompts[0] != prompts[1]:
        raise DataError(
            f"{row['id']}: the template writes the prompt of the two sides in different tokens ({len(prompts[0])} and {len(prompts[1])}),"
            " so that they cannot be compared. Give prompt and answers apart ('prompt', 'chosen', 'rejected')"
        )
    return item(encoded, row["id"], token_values=_places(encoded) if places else {})


def encode_scored(row: Row, template: Template) -> Sample | Rejected:
    """A prompt with one answer and its ``score``, as a sample of one document. Raises ``DataError`` for a score that is no number."""
    score = row.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) < float("inf"):
        raise DataError(
            f"{row['id']}: field 'score' is {score!r}; a row has prompt, response and a number that says how good that is. Name the right"
            " field with --data.columns '{score: NAME}'"
        )
    *before, answer = conversation(row)
    if answer["role"] != "assistant" or _is_empty(answer):
        return Rejected("'response' is empty", row["id"])
    encoded = _encode(row, template, [*({**turn, "train": False} for turn in before), answer])
    if not any(encoded.trained[1:]):
        return Rejected("'response' has no token of its own", row["id"])
    return item([encoded], row["id"], document_values={"score": [float(score)]})


def readable_answers(row: Row) -> tuple[list[Message], list[list[Message]], bool]:
    """The prompt of a row, its answers, and whether these are the two sides of a pair. Raises ``DataError``.

    Answers are ``chosen`` and ``rejected``, the list ``responses`` or ``answers`` (texts, or objects with a ``text``), or the answer of a
    conversation of any other shape.
    """
    if row.get("chosen") is not None:
        prompt, *sides = preference(row)
        return prompt, sides, True
    name = next((each for each in ("responses", "answers") if isinstance(row.get(each), list)), None)
    if name is None:
        *prompt, answer = conversation(row)
        return prompt, [[answer]], False
    texts = [each.get("text") if isinstance(each, Mapping) else each for each in row[name]]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{row['id']}: field {name!r} must be a list of at least one text, or of objects with a 'text'; got {row[name]!r:.80}"
        )
    rest = {key: value for key, value in row.items() if key != name}
    turns = [conversation({**rest, "response": text}) for text in texts]
    return turns[0][:-1], [each[-1:] for each in turns], False


def item(
    documents: Sequence[Encoded],
    row_id: str,
    *,
    document_values: Mapping[str, Sequence[float]] | None = None,
    token_values: Mapping[str, Sequence[float]] | None = None,
) -> Sample:
    """Encoded documents as one sample."""
    return Sample(
        [token for each in documents for token in each.ids],
        [on for each in documents for on in each.trained],
        row_id,
        None,
        [len(each.ids) for each in documents],
        document_values or {},
        token_values or {},
    )


def _encode(row: Row, template: Template, turns: Sequence[Message]) -> Encoded:
    try:
        return template.encode(turns)
    except DataError as error:
        raise DataError(f"{row['id']}: {error}") from error


def _is_empty(turn: Message) -> bool:
    return turn["role"] == "assistant" and not turn.get("tool_calls") and not str(turn["content"] or "").strip()


def _places(documents: Sequence[Encoded]) -> dict[str, list[float]]:
    found: list[float] = []
    for each in documents:
        count = 0
        for on in each.trained:
            found.append(float(count))
            count += on
    return {"place": found}
