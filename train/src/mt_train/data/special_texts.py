"""Special tokens that a row spells out, such as ``</s>`` in a document: text like any other, and counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from mt_core import Row, Tokenizer
from mt_train.data.texts import texts_in

_NO_TEXT = frozenset({"id", "input_ids", "labels", "trained"})


def special_tokens_of(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The special tokens that stay text where a row spells them: ``special_texts``, or the names of ``special_ids``."""
    if getattr(tokenizer, "parse_specials", False):
        return ()
    return tuple(getattr(tokenizer, "special_texts", getattr(tokenizer, "special_ids", ())))


def special_token_finder(specials: Iterable[str]) -> Callable[[Row], bool]:
    """Tells whether a text of a row spells one of them; a fraction of what encoding the text costs."""
    known = sorted(specials, key=len, reverse=True)
    if not known:
        return lambda row: False
    spelled = re.compile("|".join(map(re.escape, known)))

    def spells(row: Row) -> bool:
        texts = [text for name, value in row.items() if name not in _NO_TEXT for text in texts_in(value)]
        return spelled.search("\n".join(texts)) is not None and any(map(spelled.search, texts))

    return spells
