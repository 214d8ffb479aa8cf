"""Patterns with braces, as shells have them: ``data/{00000..00127}.tar``, ``{a,b}.jsonl``."""

from __future__ import annotations

import re
from itertools import product

from mt_core import DataError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,12})\.\.([0-9]{1,12})")
_MOST = 1_000_000


def expand_braces(pattern: str) -> list[str]:
    """Return every path that a pattern with ``{00..12}`` or ``{a,b}`` stands for; the pattern alone where it has none.

    Numbers are as long as the first one of the range. Raises ``DataError`` for a range that falls, or stands for too many.
    """
    pieces = _BRACES.split(pattern)
    choices = [[piece] if number % 2 == 0 else _choices(piece, pattern) for number, piece in enumerate(pieces)]
    count = 1
    for each in choices:
        count *= len(each)
    if count > _MOST:
        raise DataError(f"{pattern} stands for {count:,} files; {_MOST:,} are read at most. Correct its numbers")
    return ["".join(each) for each in product(*choices)]


def _choices(inner: str, pattern: str) -> list[str]:
    if (found := _RANGE.fullmatch(inner)) is None:
        return inner.split(",") if "," in inner else [f"{{{inner}}}"]
    first, last = int(found[1]), int(found[2])
    if last < first or last - first >= _MOST:
        raise DataError(
            f"{pattern}: {{{inner}}} does not rise, or by too much. Write the first and the last number, such as {{0..9}}"
        )
    return [str(number).zfill(len(found[1])) for number in range(first, last + 1)]
