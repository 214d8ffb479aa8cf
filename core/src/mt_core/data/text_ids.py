"""Ids of a text: what its tokenizer puts in front of it, and how it goes on after another text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from mt_core.protocols import Tokenizer

_ANCHORS = ("\n", "(", ".", "0")
"""Texts that a continuation is encoded after. Words seldom grow together with a line break, so that it comes first."""
_PROBE = ("(", "x")


def text_encoder(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Return the tokenizer's function for text of rows, which makes no special tokens: ``encode_text`` if there is one, else ``encode``."""
    encode: Callable[[str], list[int]] = getattr(tokenizer, "encode_text", tokenizer.encode)
    return encode


def begin_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids in front of a text: the tokenizer's ``begin_ids``, otherwise its begin token, if it has one.

    Many a tokenizer has a begin token and puts none (GPT-2's: there it is the end token).
    """
    own: tuple[int, ...] | None = getattr(tokenizer, "begin_ids", None)
    if own is not None:
        return tuple(own)
    return () if tokenizer.bos_id is None else (tokenizer.bos_id,)


def continuation_encoder(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Return the function that encodes a text which continues another text.

    Many tokenizers put a space in front of a text (SentencePiece: ``yes`` is ``▁yes``), which in the middle of a text would be one
    more. There the ids are those that the text has after another.
    """
    encode = text_encoder(tokenizer)

    @cache
    def puts_nothing_in_front() -> bool:
        before, after = _PROBE
        return tokenizer.decode([*encode(before), *encode(after)]) == before + after

    def encode_continuation(text: str) -> list[int]:
        if puts_nothing_in_front():
            return encode(text)
        for anchor in _ANCHORS:
            known, joint = encode(anchor), encode(anchor + text)
            if known and joint[: len(known)] == known:
                return joint[len(known) :]
        return encode(text)

    return encode_continuation
