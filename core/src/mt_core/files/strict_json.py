"""Strict JSON: what Python's ``json`` takes without a word and we do not.

As RFC 8259 and good sense ask: a duplicate key, NaN, Infinity or a lone surrogate is a fault with its file and line,
because each of them would change or lose training text without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from mt_core.config.strict import RefusedValueError, finite_float, no_constant, unique_object
from mt_core.errors import DataError
from mt_core.files.spans import Piece

_EXCERPT = 60
"""Characters of a faulty line that a message shows."""

_ESCAPES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole character
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    r"|\\."
)

_HALF = re.compile(r"\\u[dD][89a-fA-F]")

_KINDS = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


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
    raise DataError(f"{place}: {problem}: {before}{excerpt}{after} {fix}") from None


_DECODER = json.JSONDecoder(object_pairs_hook=unique_object, parse_constant=no_constant, parse_float=finite_float)
_SCAN: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]
