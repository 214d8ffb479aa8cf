"""Requests to a decoder, the tokens that it produces, and its state of a row in between."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Generator

from mt_core.errors import MtError
from mt_core.generation import Finish, SamplingRules
from mt_core.nn.positions import shift_behind
from mt_core.protocols import Tokenizer
from mt_core.rows import Encoded, MediaItem, MediaSpan
from mt_train.generation.choices import Choices
from mt_train.generation.text import TextStream

PromptIds = Sequence[int] | Encoded
"""Ids of a prompt, with its media if there are any."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt, and everything besides the model that determines the text after it.

    Raises ``UsageError`` for a choice that has in it what ends a text.
    """

    ids: Sequence[int]
    """The prompt; one token at least."""
    media: Sequence[MediaSpan] = ()
    """Media in the prompt, in the order of their places."""
    rules: SamplingRules = field(default_factory=SamplingRules)
    """One beam: a search is no row of a batch (``beams``)."""
    most: int = 128
    """New tokens at most; what the model takes in all bounds them, too."""
    stop: tuple[str, ...] = ()
    """The text ends before any of these."""
    choices: Choices | None = None
    """The text is one of these."""
    end_ids: tuple[int, ...] = ()
    """The text ends at any of these tokens, which is no part of it."""
    seed: int = 0
    index: int = 0
    """With ``seed`` it decides what is drawn."""
    top_logprobs: int | None = None
    """Log-probabilities (nats, under the model itself) of each token and of so many of the likeliest; ``None`` for none."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token and what is added to its logit, before every rule; OpenAI's field of this name."""
    joins: bool = False
    """Whether the text goes on in the prompt's, so that a blank between both is part of it. An answer is a text of its own."""
    streams: bool = False
    """Whether ``TokenOutput.text`` grows token by token, or comes as a whole with the last one, which costs less."""

    def __post_init__(self) -> None:
        if self.choices is not None:
            self.choices.refuse_ends(self.end_ids, self.stop)

    @property
    def after(self) -> Sequence[int]:
        """Return the tokens whose text is gone on with."""
        return self.ids if self.joins else ()


@dataclass(frozen=True)
class TokenScore:
    """Log-probability (nats) of a token, and the most likely tokens at its position with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TokenOutput:
    """One token of one row."""

    number: int
    """Number of the request, as ``add`` returned it."""
    token: int
    """Its id; that of the last one may be an end token's."""
    text: str
    """Characters that have become certain; those of all tokens add up to the text."""
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with their log-probabilities, likeliest first."""
    finish: Finish | None = None
    """Why the text ended, with its last token."""
    error: MtError | None = None
    """Why the row has no token and is gone: its rules bar all of them, its logits are no numbers, or it ended within a choice."""

    @property
    def is_last(self) -> bool:
        """Return whether nothing follows."""
        return self.finish is not None or self.error is not None


class Row:
    """A request on its way: what is new after the prompt, and the text that it makes."""

    def __init__(self, number: int, request: Request, tokenizer: Tokenizer, longest: int) -> None:
        self.number, self.request = number, request
        self.prompt = prompt_key(request.ids, request.media)
        """Key of the prompt's beginnings: equal for prompts that begin alike. Media count by their content, not by an id."""
        self.shift = shift_behind(request.media)
        """How far a new token is from its position in time, row and column."""
        self.room = longest - len(request.ids)
        self.most = min(request.most, self.room)
        self.generator = prompt_generator(request.seed, request.index)
        self.new: list[int] = []
        self._pieces: list[str] = []
        streams = request.streams and request.choices is None
        show = self._pieces.append if streams else None
        self._stream = TextStream(tokenizer, stop=request.stop, show=show, after=request.after)

    @property
    def longest(self) -> int:
        """Tokens that the model sees at most: the last new one is not given to it."""
        return len(self.request.ids) + self.most - 1

    def take(
        self, token: int, logprob: float | None, top: tuple[tuple[int, float], ...], error: MtError | None
    ) -> TokenOutput:
        """One more token, and what it does to the text; an end token is not kept."""
        finish = None if error is not None else self._finish(token)
        if finish is not None:
            text = self._stream.close()
            if self.request.choices is not None:
                chosen = self.request.choices.string(self.new)
                if chosen is None:
                    finish, error = None, MtError(f"the text ended at {text!r}, which is none of the choices")
                text = chosen or ""  # a tokenizer may decode its tokens to something a little different
            if not self.request.streams or self.request.choices is not None:
                self._pieces.append(text)
        produced = TokenOutput(self.number, token, "".join(self._pieces), logprob, top, finish, error)
        self._pieces.clear()
        return produced

    def _finish(self, token: int) -> Finish | None:
        if token in self.request.end_ids:
            return "eos"
        self.new.append(token)
        if self._stream.push(token):
            return "stop"
        if len(self.new) < self.most:
            return None
        return "context" if self.room < self.request.most else "length"


def split_prompt(prompt: PromptIds) -> tuple[Sequence[int], Sequence[MediaSpan]]:
    """Return the ids of a prompt, and its media."""
    return (prompt.ids, prompt.media) if isinstance(prompt, Encoded) else (prompt, ())


def prompt_key(ids: Sequence[int], media: Sequence[MediaSpan]) -> tuple[int, ...]:
    """Return the ids, with a number below 0 that an item has in every prompt in its places."""
    if not media:
        return tuple(ids)
    found = list(ids)
    for span in media:
        found[span.start : span.start + span.tokens] = [_item_number(span.item)] * span.tokens
    return tuple(found)


def _item_number(item: MediaItem) -> int:
    text = repr((item.encoder, item.path, item.digest)).encode() + item.content
    return -1 - (int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 2)


def prompt_generator(seed: int, index: int) -> Generator:
    """The generator of one prompt, the same in every batch and on every device."""
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
