"""CSV (RFC 4180) and TSV: records with a header, quoted line ends included, found by offset.

The same reader (Python's ``csv``, strict) finds the records and reads them, so that the two cannot disagree.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mt_core import DataError, Row
from mt_core.files import FileConfig, Piece, SpanIndex, bounded_lines, text_start

_LONGEST = 1 << 30
"""Characters of a field; Python's own limit of 131,072 is less than a document."""

_LINE_ENDS = "It has no line feeds but carriage returns, as on old Macs: convert it with tr '\\r' '\\n'. "


class CsvConfig(FileConfig):
    """Files of the records and how they are written."""

    path: str = Field(
        min_length=1, description="UTF-8 file; a folder (all *.csv below it, sorted); a pattern; .gz and .zst too"
    )
    delimiter: str = Field(",", min_length=1, description="character between two fields; \\t is a tab")
    quote: str | None = Field(
        '"',
        min_length=1,
        pattern=r"^[!-~]$",
        description="character around a field; none where fields are never quoted",
    )
    header: tuple[str, ...] = Field((), min_length=0, description="names of the columns, for files without a header")

    @field_validator("delimiter")
    @classmethod
    def _read_delimiter(cls, value: str) -> str:
        mark = "\t" if value == "\\t" else value
        if len(mark) != 1 or not (mark == "\t" or " " <= mark <= "~"):
            raise ValueError(f"{value!r} is not one ASCII character; give one, such as , ; | or \\t for a tab")
        return mark

    @model_validator(mode="after")
    def _marks_differ(self) -> Self:
        if self.delimiter == self.quote:
            raise ValueError(f"delimiter and quote are both {self.quote!r}; choose two characters")
        return self


class TsvConfig(CsvConfig):
    """Files of records with tabs."""

    path: str = Field(
        min_length=1, description="UTF-8 file; a folder (all *.tsv below it, sorted); a pattern; .gz and .zst too"
    )
    delimiter: str = Field("\t", min_length=1, description="character between two fields; \\t is a tab")


class DelimitedRows:
    """Records as rows of texts. Every file has a header of its own, or all have ``header``."""

    def __init__(self, files: list[Path], *, delimiter: str, quote: str | None, header: tuple[str, ...] = ()) -> None:
        self._form: dict[str, Any] = {"delimiter": delimiter, "strict": True}
        self._form |= {"quoting": csv.QUOTE_NONE, "quotechar": None} if quote is None else {"quotechar": quote}
        self._index = SpanIndex(files, partial(_records, form=self._form))
        self._skip = 0 if header else 1  # records before the rows of each file
        ends = [*self._index.firsts[1:], len(self._index)]
        for path, first, end in zip(files, self._index.firsts, ends, strict=True):
            if end - first <= self._skip:
                found = "only a header" if end > first else "no rows"
                fix = _LINE_ENDS if end > first and b"\r" in self._index.read(first).content.rstrip(b"\r\n") else ""
                raise DataError(
                    f"{path.absolute()} has {found}. {fix}Write rows into it, or take it out of dataset.path."
                )
        self._begins = [first - number * self._skip for number, first in enumerate(self._index.firsts)]
        self._headers = [
            _unique_names(header or self._fields(piece), "dataset.header" if header else piece.place)
            for piece in map(self._index.read, self._index.firsts)
        ]

    def __len__(self) -> int:
        return len(self._index) - len(self._headers) * self._skip

    def row(self, index: int) -> Row:
        """The record under the names of the header. Raises ``DataError`` with file and line when it is malformed or ragged."""
        number = bisect_right(self._begins, index) - 1
        piece = self._index.read(index + (number + 1) * self._skip)
        fields, header = self._fields(piece), self._headers[number]
        if len(fields) != len(header):
            raise DataError(
                f"{piece.place}: {len(fields)} fields, and there are {len(header)} columns: {', '.join(header)[:80]}."
                f" Quote a field that contains {self._form['delimiter']!r}, or set dataset.delimiter, dataset.quote or dataset.header."
            )
        return {**dict(zip(header, fields, strict=True)), "id": piece.place}

    def _fields(self, piece: Piece) -> list[str]:
        try:
            return next(_reader(io.StringIO(piece.text(), newline="\n"), self._form))
        except csv.Error as error:
            raise DataError(
                f"{piece.place}: {error}: {piece.content[:60].decode('latin-1')!a}. Write a quote in a quoted field twice, quote"
                " a field with a line end, and set dataset.quote none where quotes mean nothing."
            ) from error


def delimited_files(config: CsvConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a split."""
    return config.files(split, ".tsv" if config.delimiter == "\t" else ".csv")


def build_delimited(config: CsvConfig, *, split: Literal["train", "eval"]) -> DelimitedRows | None:
    """The rows of a split."""
    files = delimited_files(config, split)
    if files is None:
        return None
    return DelimitedRows(files, delimiter=config.delimiter, quote=config.quote, header=config.header)


def _reader(lines: Iterable[str], form: dict[str, Any]) -> Iterator[list[str]]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))
    return csv.reader(lines, **form)


def _records(path: Path, form: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """(line, start, end) of each record; blank lines between records are none. A malformed one is told when it is read."""
    end = start = text_start(path)
    number, line = 0, 1

    def feed() -> Iterator[str]:
        nonlocal end, number
        for content in bounded_lines(file, path, number):
            end, number = end + len(content), number + 1
            yield content.decode("latin-1")  # every byte as one character: only ASCII matters here

    with path.open("rb") as file:
        file.seek(start)
        reader = _reader(feed(), form)
        while True:
            try:
                fields = next(reader, None)
            except csv.Error as error:
                if "end of data" in str(error):
                    raise DataError(
                        f"{path}:{line}: a quote opens here and does not close before the end of the file. Close it, or set"
                        " dataset.quote none where quotes mean nothing."
                    ) from error
                fields = [""]
            if fields is None:
                return
            if fields:
                yield line, start, end
            start, line = end, number + 1


def _unique_names(names: Iterable[str], place: str) -> tuple[str, ...]:
    header = tuple(names)
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise DataError(f"{place}: column {twice[0]!r} stands twice. Rename one of the two.")
    return header
