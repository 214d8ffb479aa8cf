"""Special tokens in the text of a conversation: those that the template wrote, and no others.

What a person wrote is never read as a special token: ``<|im_end|>`` in a user's text is put between two marks before it is
rendered, and encoded as the characters that it is. Some tokenizers read special tokens in a text, and get it as it is; for the
others the text is taken apart at each of them. Marks are noncharacters, which Unicode keeps free for such use
(https://www.unicode.org/faq/private_use.html#nonchar1).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from mt_core.data.templates.turnwise import MARK
from mt_core.data.tools import texts_in, with_texts
from mt_core.errors import DataError
from mt_core.protocols import ManyOffsets, Message, Tokenizer

_OPEN, _CLOSE, _BOS, _EOS = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
SAID = ("content", "reasoning_content", "input", "name", "tool_call_id", "tool_calls", "tools")
"""What people, models and tools wrote in a message."""

_START, _END = itemgetter(0), itemgetter(1)
_MARKS = re.compile(f"[{_OPEN}-{MARK}]")
_PLAIN = frozenset({"role", "content", "train", "weight", "raw"})


@dataclass(frozen=True)
class Reading:
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


class Notation:
    """How special tokens are written in a text for one tokenizer, and read back.

    ``names`` are what a template may write, such as ``bos_token``. A tokenizer that reads special tokens in a text says so with
    ``special_tokens`` (their names), one that does not may list them in ``special_ids`` (text → id).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        named: Mapping[str, str] = getattr(tokenizer, "special_tokens", {})
        ids: Mapping[str, int] = getattr(tokenizer, "special_ids", {})
        self.is_native = bool(named)
        """Whether the tokenizer reads special tokens in a text by itself."""
        marks = {_BOS: tokenizer.bos_id, _EOS: tokenizer.eos_id}
        self._ids: dict[str, int] = {} if named else {**{k: v for k, v in marks.items() if v is not None}, **ids}
        own = {"bos_token": _BOS if _BOS in self._ids else "", "eos_token": _EOS if _EOS in self._ids else ""}
        self.names: Mapping[str, str] = {"bos_token": "", "eos_token": "", **named} if named else own
        self._special = _any_of([*(getattr(tokenizer, "special_texts", named.values()) if named else ids)])
        special = (
            f"|(?P<special>{_any_of(list(self._ids)).pattern})" if self._ids else ""
        )  # which slows the search down
        self._parts = re.compile(f"{_OPEN}(?P<said>[^{_CLOSE}]*){_CLOSE}{special}")

    def guarded(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with special tokens that their texts spell marked as plain text. Raises ``DataError`` for our marks."""
        if all(message.keys() <= _PLAIN for message in messages):  # as most: one look at all that was said
            text = "\n".join([message["content"] for message in messages])
            if (text.isascii() or not _MARKS.search(text)) and not self._special.search(text):
                return list(messages)
        return [self._guarded(message) for message in messages]

    def _guarded(self, message: Message) -> Message:
        said = {key: message[key] for key in SAID if key in message}
        texts = texts_in(said)
        if any(not text.isascii() and _MARKS.search(text) for text in texts):
            raise DataError(
                "a turn has a noncharacter (U+FDD0 to U+FDD4), which stands for no character of any text; remove it"
            )
        if not any(map(self._special.search, texts)):
            return message
        return {**message, **with_texts(said, lambda text: self._special.sub(f"{_OPEN}\\g<0>{_CLOSE}", text))}

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """The tokens of rendered texts. Raises ``MtError`` for a tokenizer that knows no offsets."""
        parted = [self._parted(text) for text in texts]
        pairs = zip(texts, parted, strict=True)
        plain = [text[part.start : part.end] for text, parts in pairs for part in parts if part.ids is None]
        encoded = iter(self._encoded(plain))
        return [_joined(parts, encoded) for parts in parted]

    def _parted(self, text: str) -> list[_Part]:
        parts, done = [], 0
        for found in self._parts.finditer(text):
            start, end = found.span()
            ids = [self._ids[found[0]]] if found.lastgroup == "special" else self._literally(found["said"])
            parts += [_Part(done, start), _Part(start, end, ids)]
            done = end
        parts.append(_Part(done, len(text)))
        return [part for part in parts if part.start < part.end]

    def _encoded(self, texts: Sequence[str]) -> list[tuple[list[int], Sequence[tuple[int, int]]]]:
        if isinstance(self._tokenizer, ManyOffsets):
            return self._tokenizer.encode_many_with_offsets(texts)
        return [self._tokenizer.encode_with_offsets(text) for text in texts]

    def encode(self, text: str) -> list[int]:
        """The ids alone, for tokenizers without offsets too."""
        if self.is_native and not self._parts.search(text):
            return self._tokenizer.encode(text)
        return self.read([text])[0].ids

    def first_special(self, text: str) -> int | None:
        """The first special token in a rendered text, where there is one."""
        if not self.is_native:
            found = next((part["special"] for part in self._parts.finditer(text) if part["special"]), None)
            return None if found is None else self._ids[found]
        spelled = self._special.search(text)
        ids = self._tokenizer.encode(spelled[0]) if spelled else []
        return ids[0] if len(ids) == 1 else None

    def _literally(self, text: str) -> list[int]:
        encode = getattr(self._tokenizer, "encode_literally", self._tokenizer.encode)
        ids: list[int] = encode(text)
        return ids


def _joined(parts: Sequence[_Part], encoded: Iterator[tuple[list[int], Sequence[tuple[int, int]]]]) -> Reading:
    """The parts of one text, with what became of those that were to be encoded."""
    if len(parts) == 1 and parts[0].ids is None:
        return Reading(*next(encoded))
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    for begin, end, known in parts:
        own, places = next(encoded) if known is None else (known, [(0, end - begin)] * len(known))
        ids += own
        offsets += [(begin + first, begin + last) for first, last in places]
    return Reading(ids, offsets)


def _any_of(texts: list[str]) -> re.Pattern[str]:
    """Any of the texts, the longest first; nothing where there is none."""
    return re.compile("|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))) or "(?!)")
