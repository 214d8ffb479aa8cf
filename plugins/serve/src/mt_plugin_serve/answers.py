"""One text on its way: tokens as they come become pieces of an answer, which add up to the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mt_core import Tokenizer
from mt_train.generation import Call, CallReader, GrowingText, TokenOutput, TokenScore

from .scores import TokenTexts

FINISH = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
"""Why a text ended → ``finish_reason``."""


@dataclass(frozen=True)
class Piece:
    """New part of one text."""

    text: str = ""
    scores: tuple[TokenScore, ...] = ()
    calls: tuple[Call, ...] = ()
    finish: str | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to tell."""
        return not (self.text or self.scores or self.calls or self.finish)


@dataclass
class TextAnswer:
    """The tokens of one text. With ``reader`` what may be a call of a tool is held back until it is known."""

    tokenizer: Tokenizer
    scored: bool = False
    cuts: bool = False
    """Whether it may end before a stop text, of which no token is then shown either."""
    reader: CallReader | None = None
    after: Sequence[int] = ()
    """Tokens of the text that it goes on in."""
    tokens: list[int] = field(default_factory=list)
    """All that were produced, one that ended the text included."""
    _text: str = ""
    _shown: int = 0
    _waiting: list[tuple[int, TokenScore]] = field(default_factory=list)

    def __post_init__(self) -> None:
        after = self.after if self.scored else ()  # reading a long prompt takes its time
        self._growing = GrowingText(self.tokenizer, after)
        self.texts = TokenTexts(self.tokenizer, after)
        """Texts of the tokens whose scores are told."""

    def take(self, output: TokenOutput) -> Piece:
        """Return what is certain with one more token."""
        begin = self._growing.length
        self.tokens.append(output.token)
        if self.scored and self.cuts:
            self._growing.push(output.token)
            self._growing.forget(self._growing.length)
        self._text += output.text
        if self.scored and output.logprob is not None:
            self._waiting.append((begin, TokenScore(output.token, output.logprob, output.top)))
        finish = None if output.finish is None else FINISH[output.finish]
        scores = self._release_scores(output.finish)
        if self.reader is None:
            return Piece(output.text, scores, (), finish)
        return self._with_calls(self.reader, scores, finish)

    def _with_calls(self, reader: CallReader, scores: tuple[TokenScore, ...], finish: str | None) -> Piece:
        begin = reader.format.begin(self._text)
        is_blank = not self._text[:begin].strip()  # line breaks before a call are the template's
        if finish is None:
            if is_blank:
                return Piece(scores=scores)
            new, self._shown = self._text[self._shown : begin], max(self._shown, begin)
            return Piece(new, scores)
        calls = reader.format.parse(self._text[begin:]) if finish == "stop" else ()
        if not calls:
            return Piece(self._text[self._shown :], scores, (), finish)
        return Piece("" if is_blank else self._text[self._shown : begin], scores, calls, "tool_calls")

    def _release_scores(self, finish: str | None) -> tuple[TokenScore, ...]:
        """Scores of tokens whose text is certain; at a stop text those of its own tokens are dropped."""
        if not self.cuts or finish not in (None, "stop"):
            ready = [score for _, score in self._waiting]
            self._waiting = []
            return tuple(ready)
        ready = [score for begin, score in self._waiting if begin < len(self._text)]
        self._waiting = [(begin, score) for begin, score in self._waiting if begin >= len(self._text)]
        return tuple(ready)
