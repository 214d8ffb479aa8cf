"""Places of rows in files: an index of byte ranges, so that no file is held in memory.

A span is (line, start, end): its first line, counted from 1, and its bytes. 24 bytes of memory for each.
"""

from __future__ import annotations

import codecs
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mt_core.errors import DataError
from mt_core.files.compressed import decompressed_path

Cut = Callable[[Path], Iterator[tuple[int, int, int]]]
"""A function that splits a file into spans (line, start, end)."""

MOST_ROW_BYTES = 1 << 28
"""Most bytes of a line or array element. A longer one is not a row, and would take ten times its size of memory."""

_AHEAD = 1 << 16
"""Bytes that are read at once where spans are read one after another."""

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def whole_file(path: Path) -> Iterator[tuple[int, int, int]]:
    """The whole file as one span."""
    yield 1, text_start(path), path.stat().st_size


def lines(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield one span for each line that is not blank."""
    for number, start, end, blank in _lines(path):
        if not blank:
            yield number, start, end


def paragraphs(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield one span for each run of lines between blank lines."""
    first, begin, stop = 0, 0, 0
    for number, start, end, blank in _lines(path):
        if blank and first:
            yield first, begin, stop
            first = 0
        elif not blank:
            first, begin, stop = (first, begin, end) if first else (number, start, end)
    if first:
        yield first, begin, stop


def _lines(path: Path) -> Iterator[tuple[int, int, int, bool]]:
    """(line, start, end, blank) of each line; only a line feed ends one, as U+2028 may stand inside a JSON string."""
    skip = text_start(path)
    with path.open("rb") as file:
        file.seek(skip)
        end = skip
        for number, line in enumerate(bounded_lines(file, path), start=1):
            start, end = end, end + len(line)
            yield number, start, end, not line.strip()


def bounded_lines(file: BinaryIO, path: Path, number: int = 0) -> Iterator[bytes]:
    """Yield the lines of a file after line ``number``.

    Raises ``DataError`` with file and line for one that is too long for a row, before it is read whole.
    """
    while line := file.readline(MOST_ROW_BYTES + 1):
        number += 1
        if len(line) > MOST_ROW_BYTES:
            raise too_long(path, number)
        yield line


def too_long(path: Path, line: int) -> DataError:
    """Return the error for a line that is too long for a row."""
    return DataError(
        f"{path}:{line}: longer than {MOST_ROW_BYTES >> 20} MiB, which no row is. Write one row a line, or cut the row into several."
    )


def text_start(path: Path, head: bytes | None = None) -> int:
    """Return the offset of the text, after a UTF-8 byte order mark; ``head`` is how it begins, if known. A UTF-16 mark is refused."""
    if head is None:
        with path.open("rb") as file:
            head = file.read(len(codecs.BOM_UTF8))
    if head.startswith(_UTF16):
        raise DataError(f"{path} is UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 {path.name}")
    return len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0


class Piece(NamedTuple):
    """The bytes of a span and where they came from. ``start`` is their offset in the file (bytes).

    ``mark`` is ``[number in the file, from 0]`` where several spans begin in one line, else empty.
    """

    path: Path
    line: int
    start: int
    content: bytes
    mark: str = ""

    @property
    def place(self) -> str:
        """``file:line``, or ``file:line[number]``."""
        return f"{self.path}:{self.line}{self.mark}"

    def text(self) -> str:
        """The content as text; raises ``DataError`` with line and byte offset where it is not UTF-8, or has a NUL."""
        try:
            text = self.content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self._place_of(error.start)}: byte 0x{self.content[error.start]:02x} at offset {self.start + error.start} is not "
                f"UTF-8 ({error.reason}). Convert the file, for instance from Latin-1: iconv -f ISO-8859-1 -t UTF-8 {self.path.name}"
            ) from None
        if b"\0" in self.content:
            nul = self.content.index(b"\0")
            raise DataError(
                f"{self._place_of(nul)}: NUL byte at offset {self.start + nul}. The file is binary, UTF-16, or was cut off while it "
                f"was written; restore it, or remove the bytes: tr -d '\\000' < {self.path.name}"
            )
        return text

    def _place_of(self, offset: int) -> str:
        line = self.line + self.content.count(b"\n", 0, offset)
        return f"{self.path}:{line}"


class SpanIndex:
    """Index of the spans of some files, which are read one at a time. Safe to fork and to pickle: no file stays open."""

    def __init__(self, paths: Sequence[Path], cut: Cut) -> None:
        self._paths = tuple(paths)
        self._contents: list[Path] = []  # the same, or their decompressed copies
        self._first = array("q")  # number of each file's first span
        self._lines, self._starts, self._ends = array("q"), array("q"), array("q")
        self._latest: tuple[int, int, bytes] = (-1, 0, b"")  # file, offset and bytes that were read last
        for path in self._paths:
            self._first.append(len(self._starts))
            self._add(path, cut)

    def _add(self, path: Path, cut: Cut) -> None:
        content = path
        try:
            content = decompressed_path(path)
            self._contents.append(content)
            for line, start, end in cut(content):
                self._lines.append(line)
                self._starts.append(start)
                self._ends.append(end)
        except OSError as error:
            raise DataError(f"{path.absolute()} cannot be read: {error.strerror}. Check its permissions.") from error
        except DataError as error:
            raise DataError(str(error).replace(str(content), str(path))) from error  # the user knows no copy

    def __len__(self) -> int:
        return len(self._starts)

    def size(self, index: int) -> int:
        """Bytes of the span at ``index``."""
        return self._ends[index] - self._starts[index]

    @property
    def firsts(self) -> Sequence[int]:
        """Number of each file's first span."""
        return self._first

    def empty_files(self) -> list[Path]:
        """Files without any span."""
        bounds = [*self._first, len(self)]
        return [path for path, begin, end in zip(self._paths, bounds, bounds[1:], strict=False) if begin == end]

    def read(self, index: int) -> Piece:
        """The piece at ``index``; raises ``DataError`` when the file is gone or shorter than at the start of the run."""
        number = bisect_right(self._first, index) - 1
        path, start, end = self._paths[number], self._starts[index], self._ends[index]
        try:
            content = self._bytes(number, start, end)
        except OSError as error:
            raise DataError(
                f"{path.absolute()} cannot be read any more: {error.strerror}. Leave the data in place during a run."
            ) from error
        if len(content) != end - start:
            raise DataError(
                f"{path.absolute()} became shorter while it was in use. Leave the data as it is during a run, and start again."
            )
        return Piece(path, self._lines[index], start, content, self._mark(index, number))

    def _bytes(self, number: int, start: int, end: int) -> bytes:
        """Bytes of a file, as far as they are there; more at once when the bytes before them were read just now."""
        file, begin, known = self._latest
        is_behind = file == number and begin <= start
        if is_behind and end <= begin + len(known):
            return known[start - begin : end - begin]
        is_next = is_behind and start < begin + len(known) + _AHEAD
        found = _bytes(self._contents[number], start, max(end - start, _AHEAD if is_next else 0))
        self._latest = number, start, found if len(found) <= _AHEAD else b""
        return found[: end - start]

    def _mark(self, index: int, number: int) -> str:
        first, lines = self._first[number], self._lines
        end = self._first[number + 1] if number + 1 < len(self._first) else len(lines)
        own = lines[index]
        shared = (index > first and lines[index - 1] == own) or (index + 1 < end and lines[index + 1] == own)
        return f"[{index - first}]" if shared else ""


def _bytes(path: Path, start: int, count: int) -> bytes:
    """A part of a file, as far as it is there; a third of the time that a file object takes."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.pread(handle, count, start)
        while len(content) < count and (more := os.pread(handle, count - len(content), start + len(content))):
            content += more  # one call gives 2 GiB at most
        return content
    finally:
        os.close(handle)
