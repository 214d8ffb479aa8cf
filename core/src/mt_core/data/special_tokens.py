"""Special tokens that a row spells out, such as ``</s>`` in a document: text like any other, and counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from mt_core.data.tools import texts_in
from mt_core.protocols import Row, Tokenizer

_NO_TEXT = frozenset({"id", "input_ids", "labels", "trained"})


def text_encoder(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Return the function that turns a row's text into ids. Not special: ``encode_text`` where ``encode`` would read those in a text."""
    encode: Callable[[str], list[int]] = getattr(tokenizer, "encode_text", tokenizer.encode)
    return encode


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
