"""Documents of plain text out of lines as they come: those that ``--dataset text`` has, without an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from mt_core import DataError, Row
from mt_core.files import MOST_ROW_BYTES, Piece, json_object, suffix_of

Unit = Literal["file", "paragraphs", "lines"]
TEXTS = frozenset({".txt", ".md"})
"""Endings of files that are text, and no JSON."""


def is_text(path: Path) -> bool:
    """Return whether a file is plain text by its name, compressed or not."""
    return suffix_of(path) in TEXTS


def refuse_json(lines: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the lines of a file that is text by its name alone. Raises ``DataError`` where the first one is a row of JSON."""
    for line in lines:
        if line.content.strip():
            if _is_object(line):
                raise DataError(
                    f"{line.place} is a row of JSON, and its file is text by its name: name it .jsonl, or set dataset.split (file,"
                    " paragraphs or lines) to train on it as text"
                )
            yield line
            break
        yield line
    yield from lines


def _is_object(line: Piece) -> bool:
    try:
        json_object(line)
    except DataError:
        return False
    return True


def documents(lines: Iterator[Piece], unit: Unit) -> Iterator[Piece]:
    """Yield the documents of a file's lines, blank ones included. Raises ``DataError`` for one that is too long for a row."""
    parts: list[Piece] = []
    size = 0
    for line in lines:
        is_blank = not line.content.strip()
        if parts and (unit == "lines" or (unit == "paragraphs" and is_blank)):
            yield from _join(parts, unit)
            parts, size = [], 0
        if parts or not is_blank or unit == "file":
            parts.append(line)
            size += len(line.content)
        if size > MOST_ROW_BYTES:
            raise DataError(
                f"{parts[0].place}: a document of more than {MOST_ROW_BYTES >> 20} MiB, which is held in memory. Cut it up with"
                " dataset.split paragraphs or lines."
            )
    yield from _join(parts, unit)


def _join(parts: list[Piece], unit: Unit) -> Iterator[Piece]:
    """Yield the document of these lines; none where all are blank."""
    content = b"".join(each.content for each in parts)
    if content.strip():
        yield parts[0]._replace(content=content)


def text_row(piece: Piece, unit: Unit) -> Row | DataError:
    """Return the row of a document, or what is wrong with it. The line end between two documents belongs to neither."""
    try:
        text = piece.text()
    except DataError as fault:
        return fault
    return {"id": piece.place, "text": text if unit == "file" else text.rstrip("\r\n")}
