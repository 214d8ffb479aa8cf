"""The shapes that a row may have, as one conversation."""

from __future__ import annotations

from mt_core.errors import DataError
from mt_core.protocols import Message, Row


def conversation(row: Row) -> list[Message]:
    """The turns of a row ``{"prompt", "response"}``. Raises ``DataError`` with the row's id when a field is missing or no text."""
    return [
        {"role": "user", "content": text_field(row, "prompt")},
        {"role": "assistant", "content": text_field(row, "response")},
    ]


def text_field(row: Row, name: str) -> str:
    """The text in one field; raises ``DataError`` with the row's id when it is missing or no text."""
    if name not in row:
        found = ", ".join(repr(key) for key in row if key != "id") or "none"
        raise DataError(
            f"{row['id']}: no field {name!r}; fields found: {found}. "
            f"Name the right one with data.columns, for instance --data.columns '{{{name}: NAME}}', or choose another --objective."
        )
    value = row[name]
    if not isinstance(value, str):
        raise DataError(
            f"{row['id']}: field {name!r} is of type {type(value).__name__}, not text: {str(value)[:60]!r}. "
            f"Write it as a string, or name another field with data.columns, for instance --data.columns '{{{name}: NAME}}'."
        )
    return value
