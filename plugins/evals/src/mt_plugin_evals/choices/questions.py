"""Questions of a dataset: what is asked, the choices, and which is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mt_core import DataError, Dataset, Row

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_OWN = frozenset({"id", "fields", "choices", "answer", "right", "group"})
_SHOWN = 60
"""Characters of a value that a message shows."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """``fields`` are its texts by name, ``answer`` the index of the right choice, ``right`` of all where there may be ``several``."""

    id: str
    fields: Mapping[str, str]
    choices: tuple[str, ...]
    answer: int
    right: frozenset[int]
    several: bool = False
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Choice among the rows of a dataset: ``limit`` questions of each group, the groups in ``groups`` where there are any.

    ``count`` is how many choices a question must have. ``skip_unanswered`` leaves questions without an answer out.
    """

    count: int | None = None
    limit: int | None = None
    groups: tuple[str, ...] = ()
    skip_unanswered: bool = False


def read_questions(rows: Dataset, reading: Reading) -> tuple[list[Question], int]:
    """Return the questions in order, and how many were left out for want of an answer.

    Raises ``DataError`` for a row that is no question, with its place, and where nothing is left to ask.
    """
    found: list[Question] = []
    unanswered, taken, seen = 0, Counter[str](), set[str]()
    for row in _rows(rows):
        group = str(row.get("group", ""))
        seen.add(group)
        if (reading.groups and group not in reading.groups) or taken[group] == reading.limit:
            continue
        if (question := _question(row, group, reading)) is None:
            unanswered += 1
            continue
        taken[group] += 1
        found.append(question)
    _require_groups(reading.groups, seen)
    if not found:
        raise DataError(
            f"there is nothing to ask: {len(rows)} rows, {unanswered} of them without an answer. Give a split that has answers."
        )
    return found, unanswered


def _rows(rows: Dataset) -> Iterator[Row]:
    return (rows.row(index) for index in range(len(rows)))


def _require_groups(wanted: Sequence[str], seen: set[str]) -> None:
    if unknown := [name for name in wanted if name not in seen]:
        known = ", ".join(sorted(seen - {""})) or "none"
        raise DataError(f"no rows of {', '.join(unknown)}; there are {known}. Correct the option subjects.")


def _question(row: Row, group: str, reading: Reading) -> Question | None:
    """Return the question of a row; ``None`` where it has no answer and may be left out."""
    choices = _choices(row, reading.count)
    right = _right_places(row, len(choices))
    if not right:
        if reading.skip_unanswered:
            return None
        raise DataError(
            f"{row['id']}: no answer. Give a split that has answers, or leave such rows out with unanswered skip."
        )
    given = row.get("fields")
    texts = {**row, **given} if isinstance(given, Mapping) else row
    fields = {key: value for key, value in texts.items() if isinstance(value, str) and key not in _OWN}
    return Question(
        id=str(row["id"]),
        fields=fields,
        choices=choices,
        answer=right[0],
        right=frozenset(right),
        several=_has_several(row),
        group=group,
    )


def _choices(row: Row, count: int | None) -> tuple[str, ...]:
    given = row.get("choices")
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(each, str) for each in given):
        others = ", ".join(key for key in row if key not in ("id", "choices"))
        found = f"no choices beside its fields ({others})" if given is None else f"choices is {repr(given)[:_SHOWN]}"
        raise DataError(
            f"{row['id']}: {found}, where a list of texts is needed. Write"
            ' {"prompt": "…", "choices": ["…", "…"], "answer": 0}, or name a set whose rows are read so.'
        )
    if not 2 <= len(given) <= len(LETTERS):
        raise DataError(f"{row['id']}: {len(given)} choices; a question has 2 to {len(LETTERS)}. Correct the row.")
    if count is not None and len(given) != count:
        raise DataError(
            f"{row['id']}: {len(given)} choices in a set of {count}. Correct the row, or ask this set as one of your own"
            " with the evaluation multiple-choice."
        )
    if empty := [number for number, text in enumerate(given) if not text.strip()]:
        raise DataError(f"{row['id']}: choice {LETTERS[empty[0]]} is empty. Correct the row.")
    return tuple(given)


def _right_places(row: Row, count: int) -> list[int]:
    """Return the places of the right choices; none where the row has no answer."""
    several = row["right"] if _has_several(row) else [row.get("answer")]
    return [_place(row, each, count) for each in several if not _is_missing(each)]


def _has_several(row: Row) -> bool:
    return isinstance(row.get("right"), list | tuple)


def _is_missing(answer: Any) -> bool:
    return answer is None or answer == -1 or (isinstance(answer, str) and not answer.strip())


def _place(row: Row, answer: Any, count: int) -> int:
    text = answer.strip() if isinstance(answer, str) else ""
    place = LETTERS.find(text) if len(text) == 1 else answer
    if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < count:
        raise DataError(
            f"{row['id']}: answer is {repr(answer)[:_SHOWN]}, and there are {count} choices. Write an index from 0, or a letter from A to"
            f" {LETTERS[count - 1]}."
        )
    return place
