"""JSON read closed: no key twice, no number that JSON has no word for or that a float cannot hold."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

_MOST_DIGITS = 1000
"""Python itself refuses to read 4,301 digits, in words about itself."""
_EXCERPT = 60
"""Characters of a key that a message shows."""


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
