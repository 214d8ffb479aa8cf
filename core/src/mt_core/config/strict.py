"""JSON read closed: no key twice, no number that JSON has no word for or that a float cannot hold. Numbers in words likewise:
digits of ASCII, and few."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_MOST_DIGITS = 1000
"""Python itself refuses to read 4,301 digits, in words about itself."""
_DIGITS = re.compile(r"[0-9]{1,9}")


def parse_whole_number(text: str) -> int | None:
    """The number that a text of one to nine ASCII digits is; ``None`` for any other.

    ``str.isdigit`` says yes to ``²``, which ``int`` refuses, and to thousands of digits, which it refuses too.
    """
    return int(text) if _DIGITS.fullmatch(text) else None


def parse_json(text: str) -> Any:
    """The value. Raises ``ValueError`` (a ``JSONDecodeError`` with the place where the text is no JSON at all)."""
    return json.loads(
        text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_parse_finite
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} is written twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits is no count")
    return int(digits)


def _parse_finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is larger than a float can hold")
    return value
