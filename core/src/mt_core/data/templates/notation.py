"""Special tokens in the text of a conversation: those that the template wrote, and no others.

What a person wrote is never read as a special token: ``<|im_end|>`` in a user's text is put between two marks before it is
rendered, and encoded as the characters that it is. Some tokenizers read special tokens in a text, and get it as it is; for the
others the text is taken apart at each of them. Marks are noncharacters, which Unicode keeps free for such use
(https://www.unicode.org/faq/private_use.html#nonchar1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mt_core.data.tools import texts_in, with_texts
from mt_core.errors import DataError
from mt_core.protocols import Message, Tokenizer

_OPEN, _CLOSE, _BOS, _EOS = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
SAID = ("content", "input", "name", "tool_call_id", "tool_calls", "tools")
"""What people, models and tools wrote in a message."""

_MARKS = re.compile(f"[{_OPEN}-{_EOS}]")


@dataclass
class Reading:
    """Token ids, and the characters of the text that each came from."""

    ids: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, token: int, start: int, end: int) -> None:
        """One more token."""
        self.ids.append(token)
        self.starts.append(start)
        self.ends.append(end)


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
        self._parts = re.compile(
            f"{_OPEN}(?P<said>[^{_CLOSE}]*){_CLOSE}|(?P<special>{_any_of(list(self._ids)).pattern})"
        )

    def guarded(self, message: Message) -> Message:
        """The message with special tokens that its text spells marked as plain text. Raises ``DataError`` for our marks."""
        said = {key: message[key] for key in SAID if key in message}
        texts = list(texts_in(said))
        if any(map(_MARKS.search, texts)):
            raise DataError(
                "a turn has a noncharacter (U+FDD0 to U+FDD3), which stands for no character of any text; remove it"
            )
        if not any(map(self._special.search, texts)):
            return message
        return {**message, **with_texts(said, lambda text: self._special.sub(f"{_OPEN}\\g<0>{_CLOSE}", text))}

    def read(self, text: str) -> Reading:
        """The tokens of a rendered text. Raises ``MtError`` for a tokenizer that knows no offsets."""
        reading, done = Reading(), 0
        for part in self._parts.finditer(text):
            self._add_text(reading, text[done : part.start()], done)
            if part["special"] is None:
                for token in self._literally(part["said"]):
                    reading.add(token, *part.span())
            else:
                reading.add(self._ids[part["special"]], *part.span())
            done = part.end()
        self._add_text(reading, text[done:], done)
        return reading

    def encode(self, text: str) -> list[int]:
        """The ids alone, for tokenizers without offsets too."""
        if self.is_native and not self._parts.search(text):
            return self._tokenizer.encode(text)
        return self.read(text).ids

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

    def _add_text(self, reading: Reading, text: str, at: int) -> None:
        if not text:
            return
        ids, offsets = self._tokenizer.encode_with_offsets(text)
        starts, ends = zip(*offsets, strict=True) if offsets else ((), ())
        reading.ids += ids
        reading.starts += [at + start for start in starts] if at else starts
        reading.ends += [at + end for end in ends] if at else ends


def _any_of(texts: list[str]) -> re.Pattern[str]:
    """Any of the texts, the longest first; nothing where there is none."""
    return re.compile("|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))) or "(?!)")
