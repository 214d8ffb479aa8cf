"""Text fields of a row, checked at the border."""

from __future__ import annotations

from mt_core import DataError, Rejected, Row, Sample


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


def sample(ids: list[int], trained: list[bool], row: Row) -> Sample | Rejected:
    """The sample, or its rejection when no trained token has one before it that could predict it."""
    if not any(trained[1:]):
        return Rejected("no token is left to train on after the first", row["id"])
    return Sample(ids, trained, row["id"])
