"""JSON lines (https://jsonlines.org): one object per line, UTF-8, blank lines skipped.

Stricter than Python's ``json``, as RFC 8259 and good sense ask: a duplicate key, NaN, Infinity or a lone surrogate is a
fault with its file and line, because each of them would change or lose training text without a word.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal, NoReturn

from pydantic import Field

from mt_core import DataError, MtConfig, Row

from .spans import Piece, SpanIndex, files_of, lines

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_EXCERPT = 60


class JsonlConfig(MtConfig):
    """Where the rows are."""

    path: str = Field(
        min_length=1, description="UTF-8 file of JSON objects, one per line, or a folder: all *.jsonl below it, sorted"
    )


class JsonlDataset:
    """Rows of JSON-lines files; the file stays on disk and an index of its lines in memory."""

    def __init__(self, config: JsonlConfig) -> None:
        files = files_of(config.path, ".jsonl")
        self._index = SpanIndex(files, lines)
        if empty := self._index.empty_files():
            raise DataError(
                f"{empty[0].absolute()} has no rows"
                + (f", nor have {len(empty) - 1} other files" if len(empty) > 1 else "")
                + ". Write one JSON object per line into it, or take it out of dataset.path."
            )

    def __len__(self) -> int:
        return len(self._index)

    def row(self, index: int) -> Row:
        """The object of one line with ``id`` = ``file:line``; raises ``DataError`` with both when it is malformed."""
        piece = self._index.read(index)
        return {**_parse(piece), "id": piece.place}


def build_jsonl(config: JsonlConfig, *, split: Literal["train", "eval"]) -> JsonlDataset | None:
    """The rows; the held-out part is cut from them by the core."""
    return JsonlDataset(config) if split == "train" else None


def _parse(piece: Piece) -> dict[str, Any]:
    """The JSON object of one line."""
    text = piece.text()
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        _refuse(
            piece, text, f"{error.msg} (column {error.colno})", "Write one complete JSON object per line.", error.pos
        )
    except RecursionError:
        _refuse(piece, text, "nested too deeply", "Flatten the object.")
    except ValueError as error:
        _refuse(piece, text, str(error), "Write it as RFC 8259 allows.")
    if not isinstance(value, dict):
        _refuse(
            piece,
            text,
            f"a JSON {type(value).__name__}, not an object",
            'Write {"text": …} on each line; jq -c ".[]" takes an array apart.',
        )
    if _ESCAPED_SURROGATE.search(piece.content):
        _refuse_surrogates(piece, text, value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} stands twice in one object")
    return value


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"number {digits} is larger than a float can hold")
    return value


def _refuse_surrogates(piece: Piece, text: str, value: Any) -> None:
    """Half of a character, as left by a cut in the middle of an escaped pair, cannot be written as UTF-8."""
    if _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        _refuse(
            piece,
            text,
            "a lone surrogate, which is half of a character",
            "Write the character itself in UTF-8.",
            text.find("\\u"),
        )


def _refuse(piece: Piece, text: str, problem: str, fix: str, position: int = 0) -> NoReturn:
    begin = max(0, position - _EXCERPT // 2)
    excerpt = text[begin : begin + _EXCERPT].rstrip("\n")
    raise DataError(f"{piece.place}: {problem}: {'…' if begin else ''}{excerpt!r}. {fix}") from None
