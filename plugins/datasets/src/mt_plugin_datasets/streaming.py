"""JSON lines, and text, that are read from the front while a run trains: no index, no decompressed copy, memory flat in their size."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from os.path import expanduser
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mt_core import DataError, Row
from mt_core.files import MOST_ROW_BYTES, FileConfig, Piece, json_object, pieces_of, text_start, too_long

from .file_stream import FileStream
from .streamed_text import Unit, documents, is_text, refuse_json, text_row

_PIPED = 1 << 16
"""Bytes that are taken from a pipe at once, where so many are there."""


class StreamConfig(FileConfig):
    """Place of the rows."""

    path: str = Field(
        min_length=1,
        description="UTF-8 file of JSON objects, one per line, or of text (*.txt, *.md); a folder (all *.jsonl below it, or else all"
        " *.txt, sorted); a pattern such as 'data/*.jsonl.gz'; .gz and .zst too; a pipe, such as /dev/stdin",
    )
    split: Unit | None = Field(
        None,
        description="what is read is text, whatever its name: one document per file (default for *.txt and *.md), per paragraph, or per"
        " line",
    )


class StreamedFiles(FileStream):
    """The rows of some files, one after another. The state is a file, a line, and the byte behind it. With a ``unit`` all are text."""

    def __init__(self, files: list[Path], unit: Unit | None = None) -> None:
        super().__init__(files)
        self._unit = unit

    def rows(self, epoch: int, seed: int) -> Iterator[Row | DataError]:
        """The objects in the order of files and lines, the same in each epoch. A malformed one is given as its fault."""
        start = self.take_start()
        first, line, begin = start.get("file", 0), start.get("line", 0), start.get("offset", 0)
        for number, path in enumerate(self._files[first:], start=first):
            for piece, row in _rows(path, pieces_of(path, begin), self._unit, line, begin):
                last = piece.line + max(piece.content.count(b"\n") - 1, 0)
                offset = piece.start + len(piece.content)
                self._state = {"file": number, "name": path.name, "line": last, "offset": offset}
                yield row
            line = begin = 0


class PipedLines:
    """The rows of a pipe, which can be read once, by one process, and keeps no state."""

    def __init__(self, path: Path, unit: Unit | None = None) -> None:
        self._path, self._unit, self._is_read = path, unit, False

    def rows(self, epoch: int, seed: int) -> Iterator[Row | DataError]:
        """The objects as they come. Raises ``DataError`` when they were read before, and where several processes want them."""
        if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
            raise DataError(
                f"{self._path} is a pipe, and several processes would each get a part of its rows. Train in one process, or write the"
                " rows into a file."
            )
        if self._is_read:
            raise DataError(
                f"{self._path} is a pipe, whose rows come only once, and they are used up. Set a smaller --train.steps, or write the rows"
                " into a file."
            )
        self._is_read = True
        return (row for _, row in _rows(self._path, _read_pipe(self._path), self._unit))

    def state_dict(self) -> dict[str, Any]:
        """None: what went through a pipe is gone."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load nothing: there is no state."""


def build_stream(config: StreamConfig, *, split: Literal["train", "eval"]) -> StreamedFiles | PipedLines | None:
    """The rows of a split. Without ``eval_path`` the core holds out the first ones."""
    path = Path(expanduser(config.path))
    if split == "train" and path.is_fifo():
        if config.sha256 or config.sha1:
            raise DataError(
                f"{path} is a pipe, whose hash nobody knows before its end. Leave dataset.sha256 and sha1 out."
            )
        return PipedLines(path, config.split)
    suffixes = (".jsonl", ".json", ".txt") if config.split is None else (".txt",)
    files = config.files(split, *suffixes)
    return None if files is None else StreamedFiles(files, config.split)


def _rows(
    path: Path, content: Iterable[bytes], unit: Unit | None, line: int = 0, offset: int = 0
) -> Iterator[tuple[Piece, Row | DataError]]:
    """Yield each row with its piece: documents of a ``unit`` (of a whole file whose name is that of text), or JSON objects.

    See ``_pieces``.
    """
    lines = _pieces(path, content, line, offset)
    if unit is None and is_text(path):
        lines, unit = lines if offset else refuse_json(lines), "file"
    if unit is not None:
        yield from ((piece, text_row(piece, unit)) for piece in documents(lines, unit))
        return
    is_first = not offset
    for piece in lines:
        if not piece.content.strip():
            continue
        if is_first:
            _refuse_array(path, piece.content)
        is_first = False
        yield piece, _row(piece)


def _pieces(path: Path, content: Iterable[bytes], line: int = 0, offset: int = 0) -> Iterator[Piece]:
    """The lines behind a line that ends at a byte of the (decompressed) content. Raises ``DataError``."""
    try:
        for number, text in enumerate(_lines(content, path, line), start=line + 1):
            begin, offset = offset, offset + len(text)
            if not begin:
                begin = text_start(path, text)
                text = text[begin:]
            yield Piece(path, number, begin, text)
    except OSError as error:
        raise DataError(f"{path.absolute()} cannot be read: {error.strerror}. Check its permissions.") from error


def _refuse_array(path: Path, text: bytes) -> None:
    """Raise ``DataError`` where the first text of a file begins a JSON array."""
    if text.lstrip().startswith(b"["):
        raise DataError(
            f"{path} is a JSON array, and a stream has one JSON object per line. Write it so (jq -c '.[]' {path.name}), or read it with"
            " --dataset jsonl, which takes arrays."
        )


def _lines(content: Iterable[bytes], path: Path, line: int) -> Iterator[bytes]:
    """Yield lines with their ends, out of pieces of any size. Raises ``DataError`` for one behind ``line`` that is too long for a row."""
    parts: list[bytes] = []
    number, size = 1, 0
    for piece in content:
        *ended, rest = piece.split(b"\n")
        for end in ended:
            yield b"".join([*parts, end, b"\n"])
            parts, size, number = [], 0, number + 1
        parts.append(rest)
        size += len(rest)
        if size > MOST_ROW_BYTES:
            raise too_long(path, line + number)
    if last := b"".join(parts):
        yield last


def _read_pipe(path: Path) -> Iterator[bytes]:
    """Read a pipe as it comes: a line is not kept back until the next megabyte is there."""
    with path.open("rb") as file:
        while piece := file.read1(_PIPED):
            yield piece


def _row(piece: Piece) -> Row | DataError:
    try:
        return {**json_object(piece), "id": piece.place}
    except DataError as fault:
        return fault
