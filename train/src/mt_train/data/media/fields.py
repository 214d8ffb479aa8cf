"""Fields of rows with items, which stand in the texts beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mt_core.rows import Row
from mt_train.data.media.rules import COUNT, MediaError


class ItemField:
    """A field with items of one kind, of which texts and content parts take one after another."""

    def __init__(self, kind: str, name: str, value: Any) -> None:
        self.kind, self.name = kind, name
        self.items: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
        self.taken = 0
        self.counts: list[int] = []
        """Items taken by the text, and by the conversation."""

    def begin_again(self) -> None:
        self.counts.append(self.taken)
        self.taken = 0

    @property
    def is_matched(self) -> bool:
        most = len(self.items)
        return max(self.counts) == most and all(count in (0, most) for count in self.counts)

    def refuse(self, row_id: Any) -> None:
        """Raise ``MediaError`` with both numbers."""
        most = len(self.items)
        marks = max(self.counts, key=lambda count: abs(count - most) if count else -1)
        raise MediaError(
            f"{row_id}: field {self.name!r} has {_number(most, 'item')}, and its texts have"
            f" {_number(marks, 'place')} for them (<{self.kind}>, or content parts of that type). Make them as many, or drop the row.",
            COUNT,
        )


def field_of(row: Row, kind: str, names: Sequence[str]) -> ItemField | None:
    """The field with items of a kind; one that is null is none. Raises ``MediaError`` for two."""
    names = [name for name in names if row.get(name) is not None]
    if len(names) > 1:
        raise MediaError(
            f"{row['id']}: it has the fields {names[0]!r} and {names[1]!r}. Keep one of them, with all items.", COUNT
        )
    return ItemField(kind, names[0], row[names[0]]) if names else None


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
