"""Plain text files as rows ``{"id", "text"}``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from mt_core import DataError, MtConfig, Row

from .spans import Cut, SpanIndex, files_of, lines, paragraphs, whole

Unit = Literal["file", "paragraphs", "lines"]

_CUTS: dict[Unit, Cut] = {"file": whole, "paragraphs": paragraphs, "lines": lines}


class TextConfig(MtConfig):
    """Where the text is and what a document is."""

    path: str = Field(min_length=1, description="UTF-8 text file, or a folder: all *.txt below it, sorted by path")
    split: Unit = Field("file", description="one document per file, per paragraph (blank lines between), or per line")


class TextDataset:
    """Documents of text files. Line ends and everything else stay as they are in the file."""

    def __init__(self, config: TextConfig) -> None:
        self._strip = config.split != "file"  # the line end between two documents belongs to neither
        files = files_of(config.path, ".txt")
        self._index = SpanIndex(files, _CUTS[config.split])
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
    """The files of a split; the held-out part is cut from them by the core."""
    return files_of(config.path, ".txt") if split == "train" else None


def build_text(config: TextConfig, *, split: Literal["train", "eval"]) -> TextDataset | None:
    """The documents; the held-out part is cut from them by the core."""
    return TextDataset(config) if split == "train" else None
