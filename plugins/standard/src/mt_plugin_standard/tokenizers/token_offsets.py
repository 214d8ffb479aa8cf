"""Characters of each token from the widths of tokens, where a text is nothing but its tokens one after another.

So it is with byte-level BPE, whose tokens are bytes: the tokenizer's own offsets are these sums, and cost it a sixth of its time. What
else it may do to a text is looked for once (``token_byte_lengths``), and each text shows that it was right (``TokenOffsets.fill``).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload
from unicodedata import is_normalized

import numpy as np
from numpy.typing import NDArray

from .byte import byte_characters, utf8

_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_SPLITS = frozenset({"Split", "Digits", "Punctuation", "UnicodeScripts"})


class LazyOffsets(Sequence[tuple[int, int]]):
    """Characters of each token, as the tokenizer says. One costs little to look up, and all of them as much as a sixth of the encoding."""

    __slots__ = ("_encoding",)

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def __len__(self) -> int:
        return len(self._encoding)

    @overload
    def __getitem__(self, number: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, number: int | slice) -> Any:
        try:
            found = self._encoding.token_to_chars(number)
        except (TypeError, OverflowError):  # a slice, or counted from the end
            found = None
        return self._encoding.offsets[number] if found is None else found

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._encoding.offsets)


@dataclass(frozen=True)
class TokenByteLengths:
    """Bytes of each token of a vocabulary, and the normal forms in which the tokenizer reads a text."""

    sizes: NDArray[np.int32]
    forms: Sequence[Any]

    def hold_for(self, text: str) -> bool:
        """Return whether the text is read as it stands. Raises ``DataError`` on a lone surrogate."""
        return text.isascii() or (utf8(text) != b"" and all(is_normalized(form, text) for form in self.forms))


class TokenOffsets(Sequence[tuple[int, int]]):
    """Characters of each token of a text, without a gap."""

    def __init__(self, text: str, ids: Sequence[int], widths: TokenByteLengths) -> None:
        self._text, self._is_ascii = text, text.isascii()
        numbers = np.frombuffer(struct.pack(f"{len(ids)}i", *ids), np.int32)  # half the time of np.array
        self._ends: NDArray[np.int64] = widths.sizes[numbers].cumsum(dtype=np.int64)
        self._size = len(text if self._is_ascii else text.encode())

    @property
    def fill(self) -> bool:
        """Return whether the text is nothing but these."""
        return self._size == (int(self._ends[-1]) if len(self._ends) else 0)

    def tokens_in(self, start: int, end: int) -> tuple[int, int]:
        """First and last token (beyond) of those with one of these characters."""
        if not self._is_ascii:
            start, end = (len(self._text[:place].encode()) for place in (start, end))
        first, last = self._ends.searchsorted((start, end - 1), "right").tolist()
        return first, max(first, min(last + (end > 0), len(self)))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, number: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, number: int | slice) -> Any:
        return self._pairs[number]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._pairs)

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        """Several tokens of one character all have it."""
        starts = np.concatenate(([0], self._ends[:-1]))[: len(self)]
        if self._is_ascii:
            return list(zip(starts.tolist(), self._ends.tolist(), strict=True))
        begins = np.frombuffer(self._text.encode(), np.uint8) & 0xC0 != 0x80
        numbers = begins.cumsum()
        return list(zip((numbers[starts] - 1).tolist(), numbers[self._ends - 1].tolist(), strict=True))


def token_byte_lengths(backend: Any) -> TokenByteLengths | None:
    """Return the bytes of each token for a tokenizer that makes nothing but tokens of a text; ``None`` where that is not certain."""
    added = backend.get_added_tokens_decoder()
    if not _keeps_text(backend) or any(token.lstrip or token.rstrip for token in added.values()):
        return None
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    if not vocabulary.keys() >= set(byte_characters()):  # each text can be written: no token is unknown
        return None
    sizes = np.zeros(max([*vocabulary.values(), *added]) + 1, np.int32)
    for text, number in vocabulary.items():
        sizes[number] = len(text)
    for number, token in added.items():
        sizes[number] = len(token.content.encode())
    return TokenByteLengths(sizes, [step["type"] for step in steps(backend.normalizer)])


def _keeps_text(backend: Any) -> bool:
    """Return whether nothing is cut off, put in, replaced, or left out of the offsets. What is not known here may do any of this."""
    from tokenizers import models

    model, before = backend.model, steps(backend.pre_tokenizer)
    if not isinstance(model, models.BPE) or model.dropout or backend.truncation or backend.padding:
        return False
    return (
        not model.continuing_subword_prefix
        and not model.end_of_word_suffix
        and any(step["type"] == "ByteLevel" for step in before)
        and all(_is_cut(step) for step in before)
        and all(step["type"] in _FORMS for step in steps(backend.normalizer))
        and all(_keeps_offsets(step) for step in steps(backend.post_processor))
    )


def _is_cut(step: dict[str, Any]) -> bool:
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    return step["type"] in _SPLITS and step.get("behavior") != "Removed"


def _keeps_offsets(step: dict[str, Any]) -> bool:
    """A template adds special tokens only, and only where it is asked to."""
    return step["type"] == "TemplateProcessing" or (step["type"] == "ByteLevel" and not step["trim_offsets"])


def steps(part: Any) -> list[dict[str, Any]]:
    """A part of a tokenizer, or those that it is made of, as ``tokenizer.json`` has them."""
    return _list_steps(json.loads(part.__getstate__())) if part is not None else []


def _list_steps(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    inner = next(value for value in step.values() if isinstance(value, list))
    return [each for one in inner for each in _list_steps(one)]
