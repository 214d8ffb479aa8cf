"""Numbers that somebody typed: digits of ASCII, and few."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"[0-9]{1,9}")


def parse_whole_number(text: str) -> int | None:
    """The number that a text of one to nine ASCII digits is; ``None`` for any other.

    ``str.isdigit`` says yes to ``²``, which ``int`` refuses, and to thousands of digits, which it refuses too.
    """
    return int(text) if _DIGITS.fullmatch(text) else None
