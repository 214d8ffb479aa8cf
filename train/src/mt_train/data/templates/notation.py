"""Special tokens in the text of a conversation: those that the template wrote, and no others.

What a person wrote is never read as a special token: the characters of ``<|im_end|>`` in a user's text are known to be the user's
through the rendering (``SpelledText``), and encoded as the characters that they are; so is a special token that a person's text and what
stands beside it spell together. Some tokenizers read special tokens in a text, and get it as it is; for the others the text is taken
apart at each of them. Marks are noncharacters, which Unicode keeps free for such use
(https://www.unicode.org/faq/private_use.html#nonchar1).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from mt_core.errors import DataError
from mt_core.protocols import ManyOffsets, Tokenizer
from mt_core.rows import MEDIA_MARK, Message
from mt_train.data.templates.spelled_text import SURROGATES, SpelledText, show, store
from mt_train.data.templates.turnwise import MARK
from mt_train.data.texts import texts_in, with_texts

_BOS, _EOS = "\ufdd2", "\ufdd3"
MEDIA_ID = -1
"""Stands for a mark among ids until what it stands for is put there."""

SAID = ("content", "reasoning_content", "input", "name", "tool_call_id", "tool_calls", "tools")
"""Keys of a message for what people, models and tools wrote."""

_START, _END = itemgetter(0), itemgetter(1)
_MARKS = re.compile(f"[\ufdd0-{MARK}]")
_PLAIN = frozenset({"role", "content", "train", "weight", "raw"})


@dataclass(frozen=True)
class TokenSpans:
    """Token ids, and the characters (start, end) of the text that each came from."""

    ids: list[int]
    offsets: Sequence[tuple[int, int]]

    def tokens_in(self, start: int, end: int) -> tuple[int, int]:
        """First and last token (beyond) of those with one of these characters; those without any (of half a character, in front of a
        word) count where they stand."""
        if (find := getattr(self.offsets, "tokens_in", None)) is not None:
            return find(start, end)  # type: ignore[no-any-return]
        first = bisect_right(self.offsets, start, key=_END)
        while first and self.offsets[first - 1][0] >= start:
            first -= 1
        return first, max(first, bisect_left(self.offsets, end, key=_START))


class _Part(NamedTuple):
    """Characters of a text: plain text that is to be encoded, or tokens that are known."""

    start: int
    end: int
    ids: list[int] | None = None


class _Edges:
    """Beginnings and ends of special tokens, which a person's text may have at its end and beginning, and the template go on with."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._heads = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._tails = frozenset(text[start:] for text in texts for start in range(1, len(text)))
        self._longest = max(map(len, texts), default=1) - 1
        self._first, self._last = {text[0] for text in texts if text}, {text[-1] for text in texts if text}

    def touch(self, text: str) -> bool:
        """Return whether the text begins or ends so."""
        begin, end = text[: self._longest], text[-self._longest :]
        may = any(char in begin for char in self._last) or any(char in end for char in self._first)
        return may and any(self.lengths(text))

    def lengths(self, text: str) -> tuple[int, int]:
        """Characters at the beginning that end a special token, and at the end that begin one: the most."""
        sizes = range(min(self._longest, len(text)), 0, -1)
        tail = next((size for size in sizes if text[:size] in self._tails), 0)
        head = next((size for size in sizes if text[-size:] in self._heads), 0)
        return tail, head


class Notation:
    """Notation of special tokens in a text for one tokenizer, and its reader.

    ``names`` are what a template may write, such as ``bos_token``. A tokenizer that reads special tokens in a text says so with
    ``special_tokens`` (their names), one that does not may list them in ``special_ids`` (text → id). With ``media`` each
    ``MEDIA_MARK`` is one token, ``MEDIA_ID``, and what follows it is read as what follows a special token.
    """

    def __init__(self, tokenizer: Tokenizer, *, media: bool = False) -> None:
        self._tokenizer = tokenizer
        named: Mapping[str, str] = getattr(tokenizer, "special_tokens", {})
        ids: Mapping[str, int] = getattr(tokenizer, "special_ids", {})
        self.is_native = bool(named)
        """Whether the tokenizer reads special tokens in a text by itself."""
        marks = {_BOS: tokenizer.bos_id, _EOS: tokenizer.eos_id}
        self._ids: dict[str, int] = {} if named else {**{k: v for k, v in marks.items() if v is not None}, **ids}
        self._stand_in = ""
        if media and named:
            self._stand_in = named.get("eos_token") or next(iter(named.values()))
        elif media:
            self._ids[MEDIA_MARK] = MEDIA_ID
        own = {"bos_token": _BOS if _BOS in self._ids else "", "eos_token": _EOS if _EOS in self._ids else ""}
        self.names: Mapping[str, str] = {"bos_token": "", "eos_token": "", **named} if named else own
        special = [*(getattr(tokenizer, "special_texts", named.values()) if named else ids)]
        self._special = _any_of(special)
        self._edges = _Edges(special)
        self._own = _any_of(list(self._ids))

    def mark_spelled(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with special tokens that their texts spell marked as plain text. Raises ``DataError`` for our marks."""
        if all(message.keys() <= _PLAIN for message in messages):  # as most: one look at all that was said
            text = "\n".join([message["content"] for message in messages])
            plain = (
                text.isascii() or not (_MARKS.search(text) or SURROGATES.search(text))
            ) and not self._special.search(text)
            if plain and not any(self._edges.touch(message["content"]) for message in messages):
                return list(messages)
        return [self._mark_message(message) for message in messages]

    def _mark_message(self, message: Message) -> Message:
        said = {key: message[key] for key in SAID if key in message}
        texts = texts_in(said)
        if any(not text.isascii() and _MARKS.search(text) for text in texts):
            raise DataError(
                "a turn has a noncharacter (U+FDD0 to U+FDD4), which stands for no character of any text; remove it"
            )
        if any(not text.isascii() and SURROGATES.search(text) for text in texts):
            raise DataError("a turn has a lone surrogate (U+D800 to U+DFFF), which is half a character; remove it")
        if not any(self._special.search(text) or self._edges.touch(text) for text in texts):
            return message
        return {**message, **with_texts(said, self._as_said)}

    def _as_said(self, text: str) -> str:
        """The text with the special tokens that it spells, wholly or at its edges, as what a person wrote."""
        before, after = self._edges.lengths(text)
        spans = [found.span() for found in self._special.finditer(text)]
        spans = [(0, before), *spans, (len(text) - after, len(text))]
        chars = list(text)
        for start, end in spans:
            chars[start:end] = store(text[start:end])
        made = "".join(chars)
        return SpelledText(made) if made != text else text

    def read(self, texts: Sequence[str]) -> list[TokenSpans]:
        """The tokens of rendered texts. Raises ``MtError`` for a tokenizer that knows no offsets."""
        if self._stand_in and any(MEDIA_MARK in text for text in texts):
            read = self._read([text.replace(MEDIA_MARK, self._stand_in) for text in texts])
            return [_put_marks(text, self._stand_in, each) for text, each in zip(texts, read, strict=True)]
        return self._read(texts)

    def _read(self, texts: Sequence[str]) -> list[TokenSpans]:
        parted = [self._split(text) for text in texts]
        pairs = zip(map(show, texts), parted, strict=True)
        plain = [text[part.start : part.end] for text, parts in pairs for part in parts if part.ids is None]
        encoded = iter(self._encode(plain))
        return [_join(parts, encoded) for parts in parted]

    def _split(self, text: str) -> list[_Part]:
        parts, done = [], 0
        for start, end, ids in self._find_special(text):
            parts += [_Part(done, start), _Part(start, end, ids)]
            done = end
        parts.append(_Part(done, len(text)))
        return [part for part in parts if part.start < part.end]

    def _find_special(self, text: str) -> Iterator[tuple[int, int, list[int]]]:
        """Yield where special tokens stand that the tokenizer does not read by itself, or that a person spelled, and their ids."""
        has_said = not text.isascii() and SURROGATES.search(text) is not None
        if self.is_native and not has_said:
            return
        shown = show(text) if has_said else text
        for found in (self._special if self.is_native else self._own).finditer(shown):
            start, end = found.span()
            if has_said and SURROGATES.search(text, start, end):
                yield start, end, self._encode_literally(found[0])
            elif not self.is_native:
                yield start, end, [self._ids[found[0]]]

    def _encode(self, texts: Sequence[str]) -> list[tuple[list[int], Sequence[tuple[int, int]]]]:
        if isinstance(self._tokenizer, ManyOffsets):
            return self._tokenizer.encode_many_with_offsets(texts)
        return [self._tokenizer.encode_with_offsets(text) for text in texts]

    def encode(self, text: str) -> list[int]:
        """The ids alone, for tokenizers without offsets too."""
        has_mark = bool(self._stand_in) and MEDIA_MARK in text
        if self.is_native and not has_mark and (text.isascii() or not SURROGATES.search(text)):
            return self._tokenizer.encode(text)
        return self.read([text])[0].ids

    def first_special(self, text: str) -> int | None:
        """The first special token in a rendered text, where there is one."""
        if not self.is_native:
            found = self._own.search(text)
            return None if found is None else self._ids[found[0]]
        spelled = self._special.search(text)
        ids = self._tokenizer.encode(spelled[0]) if spelled else []
        return ids[0] if len(ids) == 1 else None

    def _encode_literally(self, text: str) -> list[int]:
        encode = getattr(self._tokenizer, "encode_literally", self._tokenizer.encode)
        ids: list[int] = encode(text)
        return ids


def _join(parts: Sequence[_Part], encoded: Iterator[tuple[list[int], Sequence[tuple[int, int]]]]) -> TokenSpans:
    """The parts of one text, with what became of those that were to be encoded."""
    if len(parts) == 1 and parts[0].ids is None:
        return TokenSpans(*next(encoded))
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    for begin, end, known in parts:
        own, places = next(encoded) if known is None else (known, [(0, end - begin)] * len(known))
        ids += own
        offsets += [(begin + first, begin + last) for first, last in places]
    return TokenSpans(ids, offsets)


def _put_marks(text: str, stand_in: str, read: TokenSpans) -> TokenSpans:
    """The tokens of a text in which ``stand_in`` stood for each mark, with ``MEDIA_ID`` for those, and the places of the text itself."""
    more = len(stand_in) - 1
    begins = [found.start() + number * more for number, found in enumerate(re.finditer(MEDIA_MARK, text))]
    if not begins:
        return read

    def move(place: int) -> int:
        number = bisect_right(begins, place)  # marks that begin there or before
        inside = number and place < begins[number - 1] + len(stand_in)
        return begins[number - 1] - (number - 1) * more if inside else place - number * more

    ids, offsets, known = [], [], set(begins)
    for token, (start, end) in zip(read.ids, read.offsets, strict=True):
        is_mark = start in known and end == start + len(stand_in)
        ids.append(MEDIA_ID if is_mark else token)
        offsets.append((move(start), move(start) + 1 if is_mark else move(end)))
    return TokenSpans(ids, offsets)


def _any_of(texts: list[str]) -> re.Pattern[str]:
    """Any of the texts, the longest first; nothing where there is none."""
    return re.compile("|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))) or "(?!)")
