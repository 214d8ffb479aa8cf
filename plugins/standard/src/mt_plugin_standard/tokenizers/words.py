"""Ids of a text from those of its words: most of them came before, and looking one up takes a tenth of what reading it again does.

As in GPT-2's own encoder (https://github.com/openai/gpt-2/blob/master/src/encoder.py), which remembers each word. It can be done where a
pattern cuts a text into words, and each is read by itself, as in byte-level BPE. Python's ``re`` knows no classes of Unicode,
so that a pattern is taken for ASCII alone. Other texts are cut where a space follows what is no white space, which no pattern here
reads across, and a piece that is not ASCII is one word.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any

from .token_offsets import TokenByteLengths, steps

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_AFTER = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_AFTER_CASES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
PATTERNS = {
    "GPT-2": _GPT_2,
    "Llama 3": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _AFTER,
    "Qwen 2": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _AFTER,
    "GPT-4o": f"{_CASES[0]}{_CONTRACTIONS}?|{_CASES[1]}{_CONTRACTIONS}?" + r"|\p{N}{1,3}" + _AFTER_CASES,
    "Tekken": f"{_CASES[0]}|{_CASES[1]}" + r"|\p{N}" + _AFTER_CASES,
}
"""How known tokenizers cut a text. In none of them does a word go on with a space behind what is no white space."""

_ASCII = {"L": "A-Za-z", "Lu": "A-Z", "Ll": "a-z", "Lt": "", "Lm": "", "Lo": "", "M": "", "N": "0-9"}
_CLASS = re.compile(r"\\p\{(\w+)\}")
_BETWEEN_SPACES = re.compile(r"\s*\S+(?:[^\S ]\s*(?:\S+|\Z))*|\s+")

_MOST, _LONGEST = 1 << 17, 32
"""Words that are remembered, and characters of one: some 30 MB."""


class Words(dict[str, bytes]):
    """Words and their ids, 32 bits each. A word that is not there is read, and remembered."""

    def __init__(self, backend: Any, pattern: str) -> None:
        super().__init__()
        self._backend, self._word = backend, re.compile(_of_ascii(pattern), re.ASCII)
        added = backend.get_added_tokens_decoder()
        special = {token.content: number for number, token in added.items() if token.special}
        self._special = {text: struct.pack("i", number) for text, number in special.items()}
        self._apart = _any_of(special)
        self._others = _any_of(token.content for token in added.values() if not token.special)

    def ids(self, text: str, *, literally: bool) -> list[int] | None:
        """Ids of a text that is read as it stands; ``literally`` reads special tokens as text. ``None`` where other words were added."""
        if self._others is not None and self._others.search(text):
            return None
        if literally or self._apart is None:
            found = self._read(text)
        else:
            *pairs, last = self._apart.split(text)
            found = b"".join([self._special.get(part) or self._read(part) for part in pairs] + [self._read(last)])
        return memoryview(found).cast("i").tolist()

    def _read(self, text: str) -> bytes:
        cut = self._word if text.isascii() else _BETWEEN_SPACES
        return b"".join(map(self.__getitem__, cut.findall(text)))

    def __missing__(self, word: str) -> bytes:
        parts = self._word.findall(word) if word.isascii() else []
        ids = b"".join(map(self.__getitem__, parts)) if len(parts) > 1 else self._encode(word)
        if len(word) <= _LONGEST and len(self) < _MOST:
            self[word] = ids
        return ids

    def _encode(self, word: str) -> bytes:
        self._backend.encode_special_tokens = True  # what was asked before stays set otherwise
        ids = self._backend.encode_batch_fast([word], add_special_tokens=False)[0].ids
        return struct.pack(f"{len(ids)}i", *ids)


def words(backend: Any, widths: TokenByteLengths | None) -> Words | None:
    """Build the cache for a tokenizer that makes only tokens of a text (``widths``), cut by a known pattern; ``None`` for any other."""
    added = backend.get_added_tokens_decoder().values()
    if widths is None or any(token.single_word for token in added):
        return None
    if len({token.normalized for token in added if token.special}) > 1:
        return None  # those that are not normalized are looked for first, even where a longer one begins there
    *before, last = steps(backend.pre_tokenizer)
    if last["type"] == "ByteLevel" and last["use_regex"] and not before:
        return Words(backend, _GPT_2)
    known = next((each for each in PATTERNS.values() if before == [_split(each)]), None)
    return Words(backend, known) if known and last["type"] == "ByteLevel" and not last["use_regex"] else None


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _of_ascii(pattern: str) -> str:
    """Return the same pattern for ASCII alone: a class of Unicode as letters or digits, in brackets where it stands in none."""
    in_brackets = re.sub(r"\[[^]]*\]", lambda found: _CLASS.sub(lambda name: _ASCII[name[1]], found[0]), pattern)
    return _CLASS.sub(lambda name: f"[{_ASCII[name[1]]}]", in_brackets)


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Any of the texts, the longest first, as a group; ``None`` where there is none."""
    found = sorted(texts, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, found))})") if found else None
