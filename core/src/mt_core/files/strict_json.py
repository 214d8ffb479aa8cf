"""Strict JSON: what Python's ``json`` takes without a word and we do not.

As RFC 8259 and good sense ask: a key that stands twice, NaN, Infinity, a number that a float cannot hold or a lone surrogate is a
fault, because each would change or lose something without a word; in rows with file and line.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from mt_core.errors import DataError
from mt_core.files.spans import Piece

_MOST_DIGITS = 1000
"""Python itself refuses to read 4,301 digits, in words about itself."""

_EXCERPT = 60
"""Characters of a key, or of a faulty line, that a message shows."""

_ESCAPES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole character
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    r"|\\."
)

_HALF = re.compile(r"\\u[dD][89a-fA-F]")

_KINDS = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


class RefusedValueError(ValueError):
    """JSON that Python would accept and we do not; ``word`` is where it stands in the text, ``fix`` what to do in a file of rows."""

    def __init__(self, problem: str, fix: str, word: str) -> None:
        super().__init__(problem)
        self.problem, self.fix, self.word = problem, fix, word


def parse_json(text: str) -> Any:
    """The value. Raises ``ValueError`` (a ``JSONDecodeError`` with the place where the text is no JSON at all)."""
    return json.loads(
        text, object_pairs_hook=unique_object, parse_constant=no_constant, parse_int=_integer, parse_float=finite_float
    )


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, where no key stands twice."""
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        problem = f"key {twice[:_EXCERPT]!r} stands twice in one object"
        raise RefusedValueError(problem, "Keep one of the two.", json.dumps(twice))
    return value


def no_constant(word: str) -> NoReturn:
    """Refuses NaN and Infinity."""
    raise RefusedValueError(f"{word} is not JSON", "Write null, or leave the field out.", word)


def finite_float(digits: str) -> float:
    """The number, where a float can hold it."""
    value = float(digits)
    if math.isinf(value):
        problem = f"{digits[:20]} is larger than a float can hold"
        raise RefusedValueError(problem, "Write it as a string.", digits)
    return value


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits is no count")
    return int(digits)


def json_object(piece: Piece) -> dict[str, Any]:
    """Return the JSON object of a piece. Raises ``DataError`` with file, line and column if it is anything else."""
    value = json_value(piece)
    if not isinstance(value, dict):
        fix = 'Write {"text": …} for each row; jq -c ".[]" takes an array apart.'
        _refuse(piece, piece.text(), f"an object is needed, this is {_KINDS.get(type(value), 'a number')}", fix)
    return value


def json_value(piece: Piece) -> Any:
    """Return the JSON value of a piece. Raises ``DataError`` with file, line and column if it is malformed."""
    text = piece.text().rstrip("\r\n")
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        problem = f"{error.msg.removesuffix(' at').rstrip(': ')} at column {error.colno}"
        _refuse(piece, text, problem, "Write one complete JSON object per line, or an array of them.", error.pos)
    except RefusedValueError as error:
        _refuse(piece, text, error.problem, error.fix, max(0, text.rfind(error.word)))
    except ValueError:
        _refuse(piece, text, "an integer with thousands of digits", "Write it as a string.")
    except RecursionError:
        _refuse(piece, text, "nested too deeply to be read", "Write flatter rows.")
    has_halves = "\\u" in text and _HALF.search(text)  # few rows have any, and this is fast
    halves = _ESCAPES.finditer(text) if has_halves else iter(())
    lone = next((match.start(1) for match in halves if match[1]), None)
    if lone is not None:
        problem = f"a lone surrogate, which is half of a character, at column {lone - text.rfind(chr(10), 0, lone)}"
        _refuse(piece, text, problem, "Write the whole character, best as itself in UTF-8.", lone)
    return value


def _decode(text: str) -> Any:
    """Decode as ``json.loads`` does, without a decoder of its own for each text, nor a look for white space where there is none."""
    try:
        value, end = _SCAN(text, 0)
        if end == len(text):
            return value
    except StopIteration:  # a fault, which is described below
        pass
    return json.loads(text) if text.startswith("\ufeff") else _DECODER.decode(text)  # which refuses the mark


def _refuse(piece: Piece, text: str, problem: str, fix: str, position: int = 0) -> NoReturn:
    begin = max(0, position - _EXCERPT // 2)
    excerpt = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[begin : begin + _EXCERPT])
    before, after = "…" if begin else "", "…" if begin + _EXCERPT < len(text) else ""
    below = text.count("\n", 0, position)
    place = f"{piece.path}:{piece.line + below}" if below else piece.place
    raise DataError(f"{place}: {problem}: '{before}{excerpt}{after}'. {fix}") from None


_DECODER = json.JSONDecoder(object_pairs_hook=unique_object, parse_constant=no_constant, parse_float=finite_float)
_SCAN: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]
