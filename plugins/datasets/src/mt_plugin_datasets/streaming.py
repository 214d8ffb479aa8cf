"""JSON lines that are read from the front while a run trains: no index, no decompressed copy, memory flat in their size."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mt_core import DataError, Row
from mt_core.files import FileConfig, Piece, json_object, pieces_of


class StreamConfig(FileConfig):
    """Where the rows are."""

    path: str = Field(
        min_length=1,
        description="UTF-8 file of JSON objects, one per line; a folder (all *.jsonl below it, sorted); a pattern such as"
        " 'data/*.jsonl.gz'; .gz and .zst too",
    )


class JsonLines:
    """The rows of some files, one after another. The state is a file, a line, and the byte behind it."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._state: dict[str, Any] = {}
        self._start: dict[str, Any] = {}

    def rows(self, epoch: int, seed: int) -> Iterator[Row | DataError]:
        """The objects in the order of files and lines, the same in each epoch. A malformed one is given as its fault."""
        start, self._start = self._start, {}
        first = start.get("file", 0)
        for number, path in enumerate(self._files[first:], start=first):
            line, offset = (start["line"], start["offset"]) if start and number == first else (0, 0)
            for content in lines_of(path, offset):
                line, begin, offset = line + 1, offset, offset + len(content)
                if not content.strip():
                    continue
                self._state = {"file": number, "line": line, "offset": offset}
                yield _row(Piece(path, line, begin, content.removeprefix(codecs.BOM_UTF8) if not begin else content))

    def state_dict(self) -> dict[str, Any]:
        """Where the last row ends."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ``DataError`` when there is no such file."""
        if not 0 <= state["file"] < len(self._files):
            raise DataError(
                f"the run stopped in file {state['file'] + 1} of its stream, and dataset.path has {len(self._files)} files now. Put the"
                " files back"
            )
        self._start = self._state = dict(state)


def lines_of(path: Path, start: int = 0) -> Iterator[bytes]:
    """The lines of a file with their ends, from a byte of its (decompressed) content on. Raises ``DataError``."""
    parts: list[bytes] = []
    try:
        for piece in pieces_of(path, start):
            *ended, rest = piece.split(b"\n")
            for end in ended:
                yield b"".join([*parts, end, b"\n"])
                parts = []
            parts.append(rest)
    except OSError as error:
        raise DataError(f"{path.absolute()} cannot be read: {error.strerror}. Check its permissions.") from error
    if last := b"".join(parts):
        yield last


def build_stream(config: StreamConfig, *, split: Literal["train", "eval"]) -> JsonLines | None:
    """The rows of a split. Without ``eval_path`` the core holds out the first ones."""
    files = config.files(split, ".jsonl", ".json")
    return None if files is None else JsonLines(files)


def _row(piece: Piece) -> Row | DataError:
    try:
        return {**json_object(piece), "id": piece.place}
    except DataError as fault:
        return fault
