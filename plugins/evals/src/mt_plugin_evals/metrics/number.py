"""Numbers at the end of answers, as GSM8K has them (https://arxiv.org/abs/2110.14168)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from decimal import Decimal

from mt_core import DataError, MtConfig, Row

from .totals import Scores, means

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = tuple(map(re.compile, (",", "\\$", "(?s).*#### ", "\\.$")))
"""Patterns of lm-evaluation-harness, ``tasks/gsm8k/gsm8k.yaml`` version 3, with what it leaves out before it compares."""
_INVALID = "[invalid]"

_NUMBER = re.compile(r"((?<!\w)[-\u2212])?\$?((?<!\w)[-\u2212])?((?:[0-9][0-9,]*)?\.[0-9]+|[0-9][0-9,]*)")
"""A minus behind a word or digit is a hyphen or a difference: ``9-2`` ends with 2."""
_MARK = "####"


class Number:
    """Tells whether an answer has the right number, in three ways; see ``Metric``.

    ``strict`` and ``flexible`` are those of lm-evaluation-harness, where ``$29.00`` is not 29 and a lone comma is a number. ``number``
    takes the first number after ``####``, else the last one, and compares decimals. ``unread`` are answers without a number.
    """

    signature = "gsm8k.yaml 3 of lm-evaluation-harness (strict, flexible); first number after ####, else the last, as a decimal (number)"

    def __init__(self, config: MtConfig) -> None:
        pass

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """See ``Metric``. Raises ``DataError`` for a reference without a number."""
        wanted = [read_number(reference) for reference in references]
        if None in wanted:
            raise DataError(
                f"{row['id']}: the reference {references[wanted.index(None)][:80]!r} has no number; write it as '#### 7'"
            )
        said = read_number(prediction)
        plain = {_normalize(reference) for reference in references}
        return {
            "strict": float(_normalize(_find(_STRICT, prediction, 0)) in plain),
            "flexible": float(_normalize(_find(_FLEXIBLE, prediction, -1)) in plain),
            "number": float(said in wanted),
            "unread": float(said is None),
        }

    def total(self, scores: Scores) -> Mapping[str, float]:
        """See ``Metric``."""
        return means(scores)


def read_number(text: str) -> Decimal | None:
    """Return the first number after ``####``, else the last one of the text; ``None`` where there is none."""
    _, marked, behind = text.partition(_MARK)
    if marked and (first := _NUMBER.search(behind)):
        return _decimal(first)
    found = deque(_NUMBER.finditer(text), maxlen=1)
    return _decimal(found[0]) if found else None


def _decimal(found: re.Match[str]) -> Decimal:
    value = Decimal(found[3].replace(",", ""))
    return -value if found[1] or found[2] else value


def _find(pattern: re.Pattern[str], text: str, which: int) -> str:
    """Return what the filter ``regex`` of lm-evaluation-harness finds."""
    matches = pattern.findall(text)
    if not matches:
        return _INVALID
    match = matches[which]
    if isinstance(match, tuple):
        match = next(group for group in match if group)
    return str(match).strip()


def _normalize(text: str) -> str:
    for pattern in _IGNORED:
        text = pattern.sub("", text)
    return text.lower()
