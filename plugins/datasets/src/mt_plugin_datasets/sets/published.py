"""A published set as data, and the dataset that it makes of the set's own rows."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from mt_core import DataError, Dataset, Row

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_FIELD = re.compile(r"\{(\w+)\}")

_LONGEST = 300
"""Characters of a row that a message shows."""

Item = Mapping[str, Any]
"""Fields of a set's row, under the names that a prompt uses; ``choices`` and ``answer`` (an index) for multiple choice.

There ``right`` are all right ones, where they are several, and ``group`` is a subject or category.
"""
_KEPT = ("id", "choices", "answer", "right", "group")
"""Keys of an item that its row keeps; its texts stand in ``fields``, for evaluations that ask in words of their own."""


@dataclass(frozen=True, kw_only=True)
class PublishedSet:
    """A classic set. ``items(row)`` gives what one of its rows says, often one item; ``many`` where it may be several.

    ``hub`` is empty where the set is not there.
    ``prompt`` and ``response`` are texts with ``{fields}`` of an item; a paragraph whose fields are all empty is left out.
    Without them an item is already a row. ``read`` opens files whose form is the set's own, and ``beside`` gives the file that one of
    them is read with, which need not be there.
    """

    name: str
    summary: str
    source: str
    licence: str
    hub: str
    items: Callable[[Row], Sequence[Item]]
    prompt: str = ""
    response: str = "{response}"
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    data_files: tuple[str, ...] = ()
    many: bool = False
    read: Callable[[list[Path]], Dataset] | None = None
    beside: Callable[[Path], Path] | None = None


class SetRows:
    """The rows of a set in the shapes that objectives read."""

    def __init__(self, rows: Dataset, published: PublishedSet, prompt: str | None = None) -> None:
        self._rows, self._set = rows, published
        self._prompt = published.prompt if prompt is None else prompt
        counts = array("q", map(self._count, range(len(rows)))) if published.many else None
        self._begins = None if counts is None else array("q", accumulate(counts, initial=0))
        if not len(self):
            raise DataError(f"{rows.row(0)['id']} and all others have no item of {published.name}. Check dataset.path.")

    def __len__(self) -> int:
        return len(self._rows) if self._begins is None else self._begins[-1]

    def row(self, index: int) -> Row:
        """A row in our shape; of several items of one row each has an id of its own. Raises ``DataError`` with file and line when it is not
        what the set's rows are."""
        number = index if self._begins is None else bisect_right(self._begins, index) - 1
        inner = 0 if self._begins is None else index - self._begins[number]
        raw = self._rows.row(number)
        items = self._items(raw)
        is_one = self._begins is None or len(items) == 1
        item = {**items[inner], "id": raw["id"] if is_one else f"{raw['id']}#{inner + 1}"}
        if not self._set.prompt:
            return item
        fields = {**item, **_letter_choices(item)} if "choices" in item else item
        texts = {"prompt": render(self._prompt, fields), "response": render(self._set.response, fields)}
        kept = {key: item[key] for key in _KEPT if key in item}
        if "choices" in item:
            kept["fields"] = {key: value for key, value in item.items() if key not in _KEPT}
        return {**kept, **texts}

    def _items(self, raw: Row) -> Sequence[Item]:
        """The items of a row; whatever is not as the set's rows are is one kind of error here."""
        try:
            return self._set.items(raw)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            fields = (", ".join(repr(key) for key in raw if key != "id") or "none")[:_LONGEST]
            reason = f"no field {error}" if isinstance(error, KeyError) else str(error)[:_LONGEST]
            raise DataError(
                f"{raw['id']}: not a row of {self._set.name} ({self._set.source}): {reason}; fields found: {fields}."
                " Give a file of that set, or take its format with --dataset jsonl, csv … and --data.columns."
            ) from error

    def _count(self, number: int) -> int:
        """Items of a row; a malformed one counts as one, and is told when it is read."""
        try:
            return len(self._items(self._rows.row(number)))
        except DataError:
            return 1


def text_of(values: Item, name: str) -> str:
    """The text under a name. Raises ``KeyError`` where there is none, ``TypeError`` where it is no text."""
    value = values[name]
    if not isinstance(value, str):
        raise TypeError(f"field {name!r} is of type {type(value).__name__}, not text")
    return value


def render(text: str, fields: Item) -> str:
    """The text with its ``{fields}``, without paragraphs whose fields are all empty. Raises ``DataError`` for a missing field."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        values = {name: _field(fields, name) for name in _FIELD.findall(paragraph)}
        if not values or any(values.values()):
            paragraphs.append(_FIELD.sub(lambda match: values[match[1]], paragraph))  # noqa: B023 - used at once
    return "\n\n".join(paragraphs)


def _field(fields: Item, name: str) -> str:
    try:
        return text_of(fields, name)
    except (KeyError, TypeError) as error:
        known = ", ".join(repr(key) for key, value in fields.items() if key != "id" and isinstance(value, str))[
            :_LONGEST
        ]
        raise DataError(
            f"{fields['id']}: {{{name}}} of dataset.prompt is no text of this set's rows; texts found: {known}. Name one of them."
        ) from error


def _letter_choices(item: Item) -> dict[str, str]:
    """``{choices}`` as lines with letters, ``{letter}`` and ``{label}`` of the right one."""
    choices, answer = item["choices"], item["answer"]
    lines = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return {"choices": lines, "letter": LETTERS[answer], "label": choices[answer]}
