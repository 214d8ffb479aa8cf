"""Byte ranges of the elements of a JSON array in a file, which is mapped and never held as objects.

Only brackets, commas and strings are looked at here; an element is parsed, strictly, when its row is read.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mt_core.errors import DataError, did_you_mean
from mt_core.files.spans import MOST_ROW_BYTES, text_start, too_long

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\],:]|[^ \t\r\n{}\[\],:"]++|"', re.DOTALL)
_WHOLE = "Rows of an array cannot be told apart behind such a fault, so that none can be passed over."
_OPENS, _CLOSES = frozenset(b"{["), frozenset(b"}]")


def array_elements(path: Path, field: str | None) -> Iterator[tuple[int, int, int]]:
    """Yield (line, start, end) of each element of the file's array, or of the array in ``field`` (``data.train``: nested names).

    Raises ``DataError`` with file and line where there is no such array, or it does not end.
    """
    start = text_start(path)
    if path.stat().st_size <= start:
        return
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # closed when the last match of it is gone
    scan = _Scan(path, content, start)
    names = field.split(".") if field else []
    for done, name in enumerate(names):
        scan.enter("{", ".".join(names[:done]))
        scan.find(name, ".".join(names[: done + 1]))
    scan.enter("[", field or "")
    line, last = 1, 0
    for begin, end in scan.elements():
        line, last = line + content[last:begin].count(b"\n"), begin
        if end - begin > MOST_ROW_BYTES:
            raise too_long(path, line)
        yield line, begin, end
    scan.finish(len(names))


@dataclass(frozen=True)
class _Token:
    """A bracket, comma, colon, string or other word; ``first`` is its first byte."""

    first: int
    start: int
    end: int


class _Scan:
    """A file as tokens, read once from left to right."""

    def __init__(self, path: Path, content: mmap.mmap, start: int) -> None:
        self._path, self._content, self._at = path, content, start
        self._tokens = (_Token(content[m.start()], m.start(), m.end()) for m in _TOKEN.finditer(content, start))

    def enter(self, bracket: str, what: str) -> None:
        """Step into the object or array that comes next."""
        token = self._next()
        if token.first != ord(bracket):
            wanted, form = {"{": ("an object", "{…}"), "[": ("an array", "[…]")}[bracket]
            where = f"field {what!r}" if what else "the file"
            self._refuse(token.start, f"{where} is not {wanted} {form}", "Name the array's field with dataset.field.")

    def find(self, name: str, whole: str) -> None:
        """Go to the value of a key of the object that was entered."""
        seen: list[str] = []
        token = self._next()
        while token.first == ord('"'):
            key = self._key(token)
            if self._next().first != ord(":"):
                self._refuse(self._at, f"no ':' after key {key[:40]!r}", "Write valid JSON.")
            if key == name:
                return
            seen.append(key[:40])
            token = self._skip()
            if token.first == ord(","):
                token = self._next()
        found = ", ".join(map(repr, seen[:20])) or "none"
        self._refuse(
            token.start, f"no field {whole!r}; found: {found}", did_you_mean(name, seen) + "Set dataset.field."
        )

    def elements(self) -> Iterator[tuple[int, int]]:
        """(start, end) of what stands between the commas of the array that was entered, up to its end."""
        depth, begin, end, commas = 0, -1, -1, 0
        for token in self._tokens:
            if depth == 0 and (token.first == ord(",") or token.first in _CLOSES):
                last = token.first in _CLOSES
                if begin >= 0:
                    yield begin, end
                elif not last or commas:
                    self._refuse(
                        token.start, "nothing stands beside a comma of the array", f"Take the comma out. {_WHOLE}"
                    )
                if last:
                    self._at = token.end
                    return
                begin, commas = -1, commas + 1
                continue
            depth += (token.first in _OPENS) - (token.first in _CLOSES)
            begin, end = (token.start if begin < 0 else begin), token.end
        self._refuse(
            max(begin, 0),
            "the array does not end; its last element begins here",
            f"Fetch or write the file anew. {_WHOLE}",
        )

    def finish(self, depth: int) -> None:
        """Read the rest, which closes ``depth`` objects. Raises ``DataError`` when it does not, or when there is more."""
        for token in self._tokens:
            if depth == 0:
                self._refuse(
                    token.start, "there is more after the end of the JSON", "Write one array, or one row per line."
                )
            depth += (token.first in _OPENS) - (token.first in _CLOSES)
        if depth:
            self._refuse(self._at, "the file ends before its JSON does", "Fetch or write it anew.")

    def _skip(self) -> _Token:
        """Skip a value; the token after it."""
        depth = 0
        while True:
            token = self._next()
            if depth == 0 and (token.first == ord(",") or token.first in _CLOSES):
                return token
            depth += (token.first in _OPENS) - (token.first in _CLOSES)

    def _next(self) -> _Token:
        token = next(self._tokens, None)
        if token is None:
            self._refuse(self._at, "the file ends before its JSON does", "Fetch or write it anew.")
        self._at = token.end
        return token

    def _key(self, token: _Token) -> str:
        try:
            return str(json.loads(self._content[token.start : token.end]))
        except ValueError:
            self._refuse(token.start, "a key that is no valid string", "Write valid JSON.")

    def _refuse(self, position: int, problem: str, fix: str) -> NoReturn:
        line = 1 + self._content[:position].count(b"\n")
        raise DataError(f"{self._path}:{line}: {problem}. {fix}")
