"""Text out of tokens, as soon as its characters are whole and no stop text can begin in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mt_core.protocols import Tokenizer

Show = Callable[[str], None]

REPLACEMENT = "\ufffd"
"""Character that a tokenizer decodes an incomplete one to."""


class TextStream:
    """Collects the tokens of one text. ``show`` gets each piece once it is certain; the pieces add up to ``text``."""

    def __init__(self, tokenizer: Tokenizer, *, stop: Sequence[str] = (), show: Show | None = None) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._show = show
        self._tokens: list[int] = []
        self._shown = 0
        self.text = ""

    def push(self, token: int) -> bool:
        """Take one token; true once a stop text has appeared, which is then no part of the text."""
        self._tokens.append(token)
        if not self._stop and self._show is None:
            return False  # nobody looks before the end, and decoding costs
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(REPLACEMENT):
            return False  # perhaps the start of a character whose other bytes come next
        at = earliest(text, self._stop)
        self._say(text[:at] if at is not None else text[: len(text) - count_held_back(text, self._stop)])
        return at is not None

    def close(self) -> str:
        """The whole text; what was held back is shown."""
        text = self._tokenizer.decode(self._tokens) if self._tokens else ""
        at = earliest(text, self._stop)
        self._say(text if at is None else text[:at])
        return self.text

    def _say(self, text: str) -> None:
        self.text = text
        if self._show is not None and len(text) > self._shown:
            self._show(text[self._shown :])
            self._shown = len(text)


def earliest(text: str, stop: Sequence[str]) -> int | None:
    """Return where the first stop text begins, or ``None``."""
    found = [at for word in stop if (at := text.find(word)) >= 0]
    return min(found, default=None)


def count_held_back(text: str, stop: Sequence[str]) -> int:
    """Return how many characters at the end of the text could be the start of a stop text."""
    longest = max((len(word) for word in stop), default=1) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    return next((size for size in sizes if any(word.startswith(text[-size:]) for word in stop)), 0)
