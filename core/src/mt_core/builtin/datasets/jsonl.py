"""JSON lines (https://jsonlines.org), one object per line with blank lines skipped, or one array of objects. UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field

from mt_core import DataError, Row
from mt_core.files import FileConfig, SpanIndex, array_elements, json_object, lines

_HEAD = 1 << 16
"""Bytes in which the first character that is not blank is looked for."""


class JsonlConfig(FileConfig):
    """Where the rows are."""

    path: str = Field(
        min_length=1,
        description="UTF-8 file of JSON objects, one per line or in one array; a folder (all *.jsonl below it, sorted, or all"
        " *.json where there are none); a pattern such as 'data/*.jsonl'; .gz and .zst too",
    )
    field: str | None = Field(
        None, min_length=1, description="where in the file the array is, e.g. data.train; needed when an object is around it"
    )


class JsonlDataset:
    """Rows of JSON files; the files stay on disk and an index of their rows in memory."""

    def __init__(self, files: list[Path], field: str | None = None) -> None:
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
        return {**json_object(piece), "id": piece.place}


def build_jsonl(config: JsonlConfig, *, split: Literal["train", "eval"]) -> JsonlDataset | None:
    """The rows of a split. Without ``eval_path`` the held-out part is cut from them by the core."""
    files = config.files(split, ".jsonl", ".json")
    return None if files is None else JsonlDataset(files, config.field)


def _cut(path: Path, field: str | None) -> Iterator[tuple[int, int, int]]:
    """The elements of an array, where a field is named or the file begins with one; else the lines."""
    with path.open("rb") as file:
        head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    return array_elements(path, field) if field or head.startswith(b"[") else lines(path)
