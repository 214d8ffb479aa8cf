"""Differences of two texts, word by word."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import lru_cache

from mt_core.config.secrets import redact
from mt_tools.report.markup import Markup, element, join

LEAST_IN_COMMON = 0.35
"""Share of the words that both texts must have; below it nearly all would be marked, and nobody can read that."""
MOST_WORDS = 500
"""Words of one text; the time grows with the square."""
_WORD = re.compile(r"(?:\w+|[^\w\s])\s*|\s+")


@lru_cache(maxsize=1024)
def mark_changes(before: str, after: str) -> Markup | None:
    """Return the later text with what is new (``ins``) and what is gone (``del``).

    ``None`` where hardly a word is the same, or where they are long.

    What is secret goes first: cut into words it would not be known any more.
    """
    words: list[list[str]] = [_WORD.findall(redact(text)) for text in (before, after)]
    if max(map(len, words)) > MOST_WORDS:
        return None
    matcher = SequenceMatcher(None, words[0], words[1], autojunk=False)  # else a word that comes often is none
    if matcher.quick_ratio() < LEAST_IN_COMMON or matcher.ratio() < LEAST_IN_COMMON:
        return None
    pieces: list[str] = []
    for kind, begin, end, new_begin, new_end in matcher.get_opcodes():
        gone, new = "".join(words[0][begin:end]), "".join(words[1][new_begin:new_end])
        if kind == "equal":
            pieces.append(new)
            continue
        pieces += [element("del", gone)] if gone else []
        pieces += [element("ins", new)] if new else []
    return join(*pieces)
