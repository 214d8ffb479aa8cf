"""Rows of JSON files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mt_core.errors import DataError
from mt_core.files.arrays import array_elements
from mt_core.files.spans import SpanIndex, lines
from mt_core.files.strict_json import json_object, json_value
from mt_core.rows import Row

_HEAD = 1 << 16
"""Bytes in which the first character that is not blank is looked for."""


class JsonRows:
    """Rows of JSON files: objects, one per line or in an array, or other values, which become the field ``key``.

    The files stay on disk and an index of their rows in memory.
    """

    def __init__(self, files: list[Path], field: str | None = None, *, key: str | None = None) -> None:
        self._key = key
        self._index = SpanIndex(files, partial(_cut, field=field))
        if empty := self._index.empty_files():
            raise DataError(
                f"{empty[0].absolute()} has no rows"
                + (f", nor have {len(empty) - 1} other files" if len(empty) > 1 else "")
                + ". Write one JSON object per line into it, or take it out of dataset.path."
            )

    def __len__(self) -> int:
        return len(self._index)

    def row(self, index: int) -> Row:
        """The object of one line or element; ``id`` is always ``file:line``. Raises ``DataError`` with both when it is malformed."""
        piece = self._index.read(index)
        values = json_object(piece) if self._key is None else {self._key: json_value(piece)}
        return {**values, "id": piece.place}


def _cut(path: Path, field: str | None) -> Iterator[tuple[int, int, int]]:
    """The elements of an array, where a field is named or the file begins with one; else the lines."""
    with path.open("rb") as file:
        head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    return array_elements(path, field) if field or head.startswith(b"[") else lines(path)
