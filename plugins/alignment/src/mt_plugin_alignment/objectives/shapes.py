"""Rows of preferences in the shapes in which people write them: pairs, answers with a label, answers with scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeGuard

from mt_core import DataError, Rejected, Row, conversation, preference

if TYPE_CHECKING:
    from mt_core import Message

SIDES = ("chosen", "rejected")
EQUAL = "'chosen' and 'rejected' are the same"
EQUAL_SCORES = "no answer has a higher score than another"

_LABELS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
_TWO = ("output", "response")
"""Fields that some sets give two texts, the better one first."""


@dataclass(frozen=True, kw_only=True)
class Preference:
    """Turns that both answers follow, the two answers, and by how much one is better, where the row says so (``margin``)."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    margin: float | None = None


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The turns before the answers of a row, the answers, and whether each of them is good."""

    row_id: str
    prompt: list[Message]
    answers: list[list[Message]]
    labels: list[bool]


@dataclass(frozen=True)
class Answers:
    """The answers of one row to one prompt, each a list of turns."""

    row_id: str
    prompt: Sequence[Message]
    answers: Sequence[Sequence[Message]]
    are_sides: bool = False
    """Whether these are the chosen answer and the rejected one."""


def read_preference(row: Row) -> Preference | Rejected:
    """A row as a pair. Rejected are sides that are equal or empty, and answers of equal scores.

    Raises ``DataError`` for a row that is no pair, or whose sides answer different prompts, or none.
    """
    with_sides = _with_sides(row)
    if isinstance(with_sides, Rejected):
        return with_sides
    row = with_sides
    prompt, chosen, rejected = preference(row)
    if chosen == rejected:
        return Rejected(EQUAL, row["id"])
    for side, turns in zip(SIDES, (chosen, rejected), strict=True):
        if any(is_empty(turn) for turn in turns):
            return Rejected(f"{side!r} is empty", row["id"])
    _refuse_prompts(row, prompt, chosen, rejected)
    return Preference(prompt=prompt, chosen=chosen, rejected=rejected, margin=margin_of(row))


def read_answers(row: Row) -> Answers:
    """The answers of a row. Raises ``DataError``.

    These are ``chosen`` and ``rejected``, the list ``responses`` or ``answers`` (texts, or objects with a ``text``) to any prompt that
    ``read_prompt`` knows, or the answer of a conversation of any other shape.
    """
    if row.get("chosen") is not None:
        prompt, *sides = preference(row)
        return Answers(row["id"], prompt, sides, are_sides=True)
    name = next((each for each in ("responses", "answers") if isinstance(row.get(each), list)), None)
    if name is None:
        *prompt, answer = conversation(row)
        return Answers(row["id"], prompt, [[answer]])
    texts = [each.get("text") if isinstance(each, Mapping) else each for each in row[name]]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{row['id']}: field {name!r} must be a list of at least one text, or of objects with a 'text'; got {_shown(row[name])}"
        )
    rest = {key: value for key, value in row.items() if key != name}
    # as prompts of an online objective: where the row has an answer of its own, it is none of the list
    answers = [preference({**rest, "chosen": text, "rejected": text})[1] for text in texts]
    return Answers(row["id"], read_prompt(row), answers)


def read_labelled(row: Row) -> Labelled | Rejected:
    """A row with ``label`` beside a conversation of any shape, whose last turn it is about; a pair as a good answer and a bad one.

    Raises ``DataError`` for a row that is neither.
    """
    if row.get("label") is None and _has_sides(row):
        pair = read_preference(row)
        if isinstance(pair, Rejected):
            return pair
        return Labelled(
            row_id=row["id"], prompt=pair.prompt, answers=[pair.chosen, pair.rejected], labels=[True, False]
        )
    is_good = label_of(row)
    *prompt, answer = conversation({name: value for name, value in row.items() if name != "label"})
    if answer["role"] != "assistant":
        raise DataError(
            f"{row['id']}: the last turn is no answer of the assistant, which 'label' is about. Drop the row."
        )
    return (
        Rejected("the answer is empty", row["id"])
        if is_empty(answer)
        else Labelled(row_id=row["id"], prompt=prompt, answers=[[answer]], labels=[is_good])
    )


def label_of(row: Row) -> bool:
    """Whether the answer of a row is good. Raises ``DataError`` for a ``label`` that is missing, or neither true nor false."""
    found = _LABELS.get(str(row.get("label")).lower())
    if found is None:
        what = f"is {_shown(row['label'])}" if row.get("label") is not None else "is missing"
        raise DataError(
            f"{row['id']}: field 'label' {what}; it says whether the answer is good: true or false, 1 or 0. Repair the row, or name the"
            " right field: --data.columns '{label: NAME}'."
        )
    return found


def margin_of(row: Row) -> float | None:
    """By how much the chosen answer is better; ``None`` where the row does not say. Raises ``DataError`` for what is no number."""
    margin = row.get("margin")
    if margin is None or margin == "":  # a cell of a table that is empty
        return None
    number = _as_number(margin)
    if number is None:
        raise DataError(
            f"{row['id']}: field 'margin' is {_shown(margin)}; it is a number, by how much the chosen answer is better. Where it means"
            " something else, rename it: --data.columns '{other: margin}'."
        )
    return number


def number_of(row: Row, field: str, meaning: str) -> float:
    """Return the number in a field that each row must have. Raises ``DataError``, which says what it means."""
    value = row.get(field)
    number = _as_number(value)
    if number is None:
        raise DataError(
            f"{row['id']}: field {field!r} is {_shown(value)}; {meaning}. Name the right field with --data.columns '{{{field}: NAME}}'"
        )
    return number


def is_empty(turn: Message) -> bool:
    """Return whether an answer says nothing and calls nothing."""
    return turn["role"] == "assistant" and not turn.get("tool_calls") and not str(turn["content"] or "").strip()


def read_prompt(row: Row) -> list[Message]:
    """The turns that are to be answered: ``prompt``, ``messages``, ``conversations`` or ``instruction``. An answer at the end is not read.

    A prompt with ``choices`` has them as ``sft`` writes them. Raises ``DataError`` for a row without any prompt.
    """
    if _is_choice(row):
        return conversation({**row, "answer": 0} if row.get("answer") is None else row)[:-1]
    turns, _, _ = preference({**row, "chosen": "one", "rejected": "another"})
    while turns and turns[-1]["role"] == "assistant":
        turns = turns[:-1]
    if not turns:
        raise DataError(
            f"{row['id']}: no prompt; fields found: {_fields(row)}. Name it: --data.columns '{{prompt: NAME}}'."
        )
    return turns


def _is_choice(row: Row) -> bool:
    """Return whether a row is a prompt with choices, and no answer beside which that prompt is written out already."""
    others = ("response", "responses", "answers", "messages", "conversations", *SIDES)
    return (
        row.get("choices") is not None
        and row.get("prompt") is not None
        and all(row.get(name) is None for name in others)
    )


def _has_sides(row: Row) -> bool:
    """Return whether a row has two answers in any way that ``_with_sides`` knows."""
    named = any(row.get(name) is not None for name in (*SIDES, "preferred_output", "answers"))
    return named or any(isinstance(row.get(name), list) for name in _TWO)


def _with_sides(row: Row) -> Row | Rejected:
    """The row with ``chosen`` and ``rejected``. Raises ``DataError`` where it says neither in any way that is known."""
    if any(row.get(side) is not None for side in SIDES):
        return row
    if row.get("preferred_output") is not None:
        return _openai(row)
    if row.get("answers") is not None:
        return _scored(row)
    for name in _TWO:
        if isinstance(row.get(name), list) and len(row[name]) == len(SIDES):
            return {**row, **dict(zip(SIDES, row[name], strict=True))}
    if row.get("label") is not None:
        raise DataError(
            f"{row['id']}: one answer with a label is no pair; this objective reads 'chosen' and 'rejected'. Choose an objective for"
            " labelled answers, or rows with both."
        )
    return row


def _openai(row: Row) -> Row:
    """https://platform.openai.com/docs/guides/direct-preference-optimization"""
    asked = row.get("input")
    if not isinstance(asked, Mapping):
        raise DataError(
            f"{row['id']}: field 'input' is {_shown(asked)}; beside 'preferred_output' it is {{\"messages\": […]}}."
        )
    sides = {"chosen": row["preferred_output"], "rejected": row.get("non_preferred_output")}
    return {"id": row["id"], "messages": asked.get("messages"), "tools": asked.get("tools"), **sides}


def _scored(row: Row) -> Row | Rejected:
    """The answer with the highest score against that with the lowest, the first ones of equals."""
    answers = row["answers"]
    fine = isinstance(answers, list) and all(
        isinstance(each, Mapping) and isinstance(each.get("text"), str) and _is_number(each.get("score"))
        for each in answers
    )
    if not fine:
        raise DataError(
            f'{row["id"]}: field \'answers\' must be a list of {{"text": "…", "score": 1.0}}, got {_shown(answers)}.'
        )
    scores = [each["score"] for each in answers]
    if len(set(scores)) < len(SIDES):
        return Rejected(EQUAL_SCORES, row["id"])
    chosen, rejected = (answers[scores.index(score)]["text"] for score in (max(scores), min(scores)))
    return {**row, "chosen": chosen, "rejected": rejected}


def _refuse_prompts(row: Row, prompt: list[Message], chosen: list[Message], rejected: list[Message]) -> None:
    for turns in (chosen, rejected):
        if turns[0]["role"] != "assistant":
            raise DataError(
                f"{row['id']}: 'chosen' and 'rejected' part at a turn of the {turns[0]['role']}, so they answer different prompts. Give the"
                " prompt once ('prompt'), or the same first turns on both sides."
            )
    if not any(turn["role"] != "system" for turn in prompt):
        raise DataError(
            f"{row['id']}: no prompt; fields found: {_fields(row)}. Name it, for instance --data.columns '{{prompt: NAME}}',"
            ' or read whole dialogues with --dataset hh-rlhf. Where answers have none, write "prompt": "".'
        )
    if prompt[-1]["role"] == "assistant":
        raise DataError(
            f"{row['id']}: the turns before 'chosen' and 'rejected' end with one of the assistant, which these would go on with. End them"
            " with the user's, or put the turn into both answers."
        )


def _fields(row: Row) -> str:
    return ", ".join(_shown(name) for name in row if name != "id")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _as_number(value: Any) -> float | None:
    """A finite number, which a table may have as text (CSV) or as a decimal; ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
