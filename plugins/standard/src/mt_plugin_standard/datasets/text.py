"""Plain text files as rows ``{"id", "text"}``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from mt_core import DataError, Row
from mt_core.files import Cut, FileConfig, SpanIndex, lines, paragraphs, whole_file

Unit = Literal["file", "paragraphs", "lines"]

_CUTS: dict[Unit, Cut] = {"file": whole_file, "paragraphs": paragraphs, "lines": lines}


class TextConfig(FileConfig):
    """Files of the text, and what a document is."""

    path: str = Field(
        min_length=1,
        description="UTF-8 text file; a folder (all *.txt below it, sorted by path); a pattern such as 'books/*.md'; .gz and .zst too",
    )
    split: Unit = Field("file", description="one document per file, per paragraph (blank lines between), or per line")


class TextDataset:
    """Documents of text files. Line ends and everything else stay as they are in the file."""

    def __init__(self, files: list[Path], unit: Unit = "file") -> None:
        self._strip = unit != "file"  # the line end between two documents belongs to neither
        self._index = SpanIndex(files, _CUTS[unit])
        if not any(self._index.size(index) for index in range(len(self._index))):
            more = f", nor have the other {len(files) - 1} files" if len(files) > 1 else ""
            raise DataError(
                f"{files[0].absolute()} has no text{more}. Write some into it, or set dataset.path to another file or folder."
            )

    def __len__(self) -> int:
        return len(self._index)

    def row(self, index: int) -> Row:
        """``{"id", "text"}``; raises ``DataError`` with line and byte offset where the file is not UTF-8."""
        piece = self._index.read(index)
        text = piece.text()
        return {"id": piece.place, "text": text.rstrip("\r\n") if self._strip else text}


def text_files(config: TextConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a split."""
    return config.files(split, ".txt")


def build_text(config: TextConfig, *, split: Literal["train", "eval"]) -> TextDataset | None:
    """The documents of a split. Without ``eval_path`` the held-out part is cut from them by the core."""
    files = text_files(config, split)
    return None if files is None else TextDataset(files, config.split)
