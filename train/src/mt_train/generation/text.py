"""Text out of tokens, as soon as its characters are whole and no stop text can begin in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mt_core.protocols import Tokenizer

Show = Callable[[str], None]

REPLACEMENT = "\ufffd"
"""Character that a tokenizer decodes an incomplete one to."""


WINDOW = 48
"""Tokens that are decoded for each new one at most, where the text of the last ones is the end of the whole."""
CONTEXT = 16
"""Tokens behind which a window may begin anew: what decodes one token otherwise beside others finds its neighbours there."""
CHARACTER = 4
"""Bytes of a character at most, each of which may be a token."""


class GrowingText:
    """Text of tokens that arrive one by one. Only the last tokens are decoded again, so the work is linear in their number.

    A window moves on only to where its text is the end of what it was before: never into a character, and never so that a tokenizer
    drops a blank which it drops at the start of a text alone. That of a text which goes on ``after`` other tokens begins within their
    text, from whose end characters are counted.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self.tokens = _last_text(tokenizer, after)
        self._first, self._longest = 0, WINDOW
        self.window = tokenizer.decode(self.tokens) if after else ""
        """Text of the last tokens, all that were not forgotten included."""
        if self.window.endswith(REPLACEMENT):  # within a character, whose other bytes are no text by themselves
            self.tokens, self.window = [], ""
        self.own = len(self.window)
        """Character of the text of all ``tokens`` that this one begins at."""
        self.before = -self.own
        """Characters in front of the window."""

    @property
    def length(self) -> int:
        """Return how many characters there are, without those of which a part is missing."""
        return self.before + len(self.window.rstrip(REPLACEMENT))

    def push(self, token: int) -> None:
        """Take one more token."""
        self.tokens.append(token)
        self.window = self._tokenizer.decode(self.tokens[self._first :])

    def forget(self, characters: int) -> None:
        """Let the window begin later; so many characters of the whole text may be in front of it, and no more."""
        count = len(self.tokens)
        if count - self._first < self._longest:
            return
        for first in range(count - CONTEXT, count - CONTEXT - CHARACTER, -1):
            tail = self._tokenizer.decode(self.tokens[first:])
            before = self.before + len(self.window) - len(tail)
            if tail.strip() and self.window.endswith(tail) and before <= characters:
                self._first, self._longest, self.before, self.window = first, WINDOW, before, tail
                return
        self._longest *= 2  # not asked again for each token


def _last_text(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """Return the last tokens that have a text and begin with a character, or all: what a text is decoded behind."""
    count = CONTEXT
    while count < len(tokens):
        for first in range(len(tokens) - count, len(tokens) - count + CHARACTER):
            text = tokenizer.decode(tokens[first:])
            if text.strip() and not text.startswith(REPLACEMENT):
                return list(tokens[first:])
        count *= CHARACTER
    return list(tokens)


class TextStream:
    """Collects the tokens of one text. ``show`` gets each piece once it is certain; the pieces add up to what ``close`` returns."""

    def __init__(
        self, tokenizer: Tokenizer, *, stop: Sequence[str] = (), show: Show | None = None, after: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._show = show
        self._growing = GrowingText(tokenizer, after)
        self._certain = 0

    def push(self, token: int) -> bool:
        """Take one token; true once a stop text has appeared, which is then no part of the text."""
        growing = self._growing
        if not self._stop and self._show is None:
            growing.tokens.append(token)  # nobody looks before the end, and decoding costs
            return False
        growing.push(token)
        if growing.window.endswith(REPLACEMENT):
            return False  # perhaps the start of a character whose other bytes come next
        new = growing.window[self._certain - growing.before :]
        at = earliest(new, self._stop)
        self._say(new[:at] if at is not None else new[: len(new) - count_held_back(new, self._stop)])
        growing.forget(self._certain)
        return at is not None

    def close(self) -> str:
        """The whole text; what was held back is shown."""
        tokens = self._growing.tokens
        text = self._tokenizer.decode(tokens)[self._growing.own :] if tokens else ""
        text = text[: earliest(text, self._stop)]
        self._say(text[self._certain :])
        return text

    def _say(self, new: str) -> None:
        self._certain += len(new)
        if self._show is not None and new:
            self._show(new)


def earliest(text: str, stop: Sequence[str]) -> int | None:
    """Return where the first stop text begins, or ``None``."""
    found = [at for word in stop if (at := text.find(word)) >= 0]
    return min(found, default=None)


def count_held_back(text: str, stop: Sequence[str]) -> int:
    """Return how many characters at the end of the text could be the start of a stop text."""
    longest = max((len(word) for word in stop), default=1) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    return next((size for size in sizes if any(word.startswith(text[-size:]) for word in stop)), 0)
