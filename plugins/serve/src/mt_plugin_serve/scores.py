"""Log-probabilities of tokens, as both answers of OpenAI's API show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from mt_core import Tokenizer
from mt_train.generation import GrowingText, TokenScore

LOWEST = -9999.0
"""OpenAI's log-probability of a token that cannot be; JSON has no infinity."""
_INCOMPLETE = "\ufffd"


@runtime_checkable
class HasTokenBytes(Protocol):
    """A tokenizer that knows the bytes of tokens which are only a part of a character."""

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token; ``None`` for one that has none, or whose text is not made of bytes."""
        ...


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of a token by itself; ``token_id:N`` for one that has none, or is only a part of a character."""
    return _name(token, _whole(tokenizer.decode([token])))


def _whole(text: str) -> str | None:
    return None if not text or _INCOMPLETE in text else text


def _name(token: int, text: str | None) -> str:
    return f"token_id:{token}" if text is None else text


class TokenTexts:
    """Texts of the tokens of an answer, in order, and the character that each begins at.

    A token's text is what it adds to the last one before it that has a text: many a tokenizer drops the blank of the first token of a
    text, and of one that is decoded alone. At the start of a text there is none before it, unless it goes on ``after`` others.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self.begin(0, after)

    def begin(self, offset: int, after: Sequence[int] = ()) -> None:
        """Begin a text at this character of the answer: one of its own, or one that goes on ``after`` other tokens."""
        self._offset, self._growing = offset, GrowingText(self._tokenizer, after)
        self._anchor: tuple[list[int], str] = ([], "")
        for token in self._growing.tokens:
            self._move_anchor(token)
        self._known: dict[int, str | None] = {}

    def text(self, token: int) -> str | None:
        """Return the text that a token has in the next place; ``None`` for one without, or with only a part of a character."""
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    def _read(self, token: int) -> str | None:
        ids, before = self._anchor
        text = self._tokenizer.decode([*ids, token])
        if not text.startswith(before):
            text, before = self._tokenizer.decode([token]), ""
        return _whole(text[len(before) :])

    def encode(self, token: int) -> bytes | None:
        """Return the bytes of a token in the next place, which together are the answer in UTF-8; ``None`` where they are not known."""
        if (text := self.text(token)) is not None:
            return text.encode()
        return self._tokenizer.token_bytes(token) if isinstance(self._tokenizer, HasTokenBytes) else None

    def name(self, token: int) -> str:
        """Return the text of a token, or ``token_id:N``."""
        return _name(token, self.text(token))

    def push(self, token: int) -> int:
        """Take the next token, and return the character that it begins at. All parts of a character begin where it does."""
        text, growing = self.text(token), self._growing
        begin = growing.length
        growing.push(token)
        if text is not None and growing.window.endswith(text):
            begin = growing.before + len(growing.window) - len(text)
        growing.forget(growing.length)
        self._known = {}
        self._move_anchor(token)
        return self._offset + begin

    def _move_anchor(self, token: int) -> None:
        if alone := _whole(self._tokenizer.decode([token])):
            self._anchor = ([token], alone)


def chat_scores(texts: TokenTexts, scores: Sequence[TokenScore]) -> dict[str, Any]:
    """Return ``logprobs`` of a choice of a chat, of its next tokens."""
    content = []
    for score in scores:
        top = [_entry(texts, token, logprob) for token, logprob in score.top]
        content.append({**_entry(texts, score.token, score.logprob), "top_logprobs": top})
        texts.push(score.token)
    return {"content": content, "refusal": None}


def _entry(texts: TokenTexts, token: int, logprob: float) -> dict[str, Any]:
    content = texts.encode(token)
    told = None if content is None else list(content)
    return {"token": texts.name(token), "logprob": max(logprob, LOWEST), "bytes": told}


def empty_scores() -> dict[str, list[Any]]:
    """Return ``logprobs`` of a choice of a completion without tokens."""
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def add_scores(found: dict[str, list[Any]], texts: TokenTexts, scores: Sequence[TokenScore | int]) -> None:
    """Add the next tokens to ``logprobs`` of a choice of a completion. A token without a score is the first one of a prompt."""
    for score in scores:
        scored, token = (None, score) if isinstance(score, int) else (score, score.token)
        found["tokens"].append(texts.name(token))
        found["token_logprobs"].append(scored and max(scored.logprob, LOWEST))
        found["top_logprobs"].append(scored and _by_text(texts, [(token, scored.logprob), *scored.top]))
        found["text_offset"].append(texts.push(token))


def _by_text(texts: TokenTexts, likeliest: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Text of a token → log-probability; of two tokens with one text the second is named by its id."""
    named: dict[str, tuple[int, float]] = {}
    for token, logprob in likeliest:
        text = texts.name(token)
        if text in named and named[text][0] != token:
            text = f"token_id:{token}"
        named[text] = (token, max(logprob, LOWEST))
    return {text: logprob for text, (_, logprob) in named.items()}
