"""A plan of what one request asks for: its texts, and the form of the answer."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mt_core import MtError
from mt_train.generation import Continuer, PromptIds, Request, TokenScore, split_prompt

from .answers import Piece, TextAnswer
from .errors import ApiError
from .models import ServedModel
from .sampling import Sampling, Streaming


@dataclass(frozen=True)
class Text:
    """One text that is asked for. ``prompt`` is shown in front of it where it is echoed; ``score_top`` asks for the prompt's scores."""

    index: int
    request: Request
    answer: TextAnswer
    prompt: str | None = None
    score_top: int | None = None
    continues: bool = True
    """Whether new tokens are asked for."""


class Form(ABC):
    """Writes the objects of an answer; each of the two requests has its own."""

    whole_name: str
    chunk_name: str
    prefix: str

    def begin(self, text: Text) -> dict[str, Any] | None:
        """Return the choice of a chunk that comes before everything else of a text."""
        return None

    @abstractmethod
    def chunk(self, text: Text, piece: Piece) -> dict[str, Any]:
        """Return the choice of a chunk."""

    @abstractmethod
    def choice(self, text: Text, pieces: Sequence[Piece], prompt_scores: Sequence[TokenScore] | None) -> dict[str, Any]:
        """Return the choice of a whole answer."""

    def prompt_chunk(self, text: Text, prompt_scores: Sequence[TokenScore] | None) -> dict[str, Any] | None:
        """Return the choice of the chunk with the prompt, where that is echoed."""
        return None


@dataclass(frozen=True)
class Plan:
    """One request: the texts that it asks for, and how they are answered."""

    model: ServedModel
    texts: Sequence[Text]
    form: Form
    streaming: Streaming
    prompt_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))
    _random: str = field(default_factory=lambda: secrets.token_hex(12))

    @cached_property
    def id(self) -> str:
        """Name of the answer."""
        return f"{self.form.prefix}-{self._random}"

    def count_jobs(self) -> int:
        """Return how many places of the queue it takes."""
        return sum(text.continues + (text.score_top is not None) for text in self.texts)

    def head(self, name: str) -> dict[str, Any]:
        """Return what every object of the answer begins with."""
        return {"id": self.id, "object": name, "created": self.created, "model": self.model.name}

    def usage(self) -> dict[str, int]:
        """Return how many tokens it took; a prompt of several texts counts once."""
        new = sum(len(text.answer.tokens) for text in self.texts)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new,
            "total_tokens": self.prompt_tokens + new,
        }


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options that all texts of a request have in common."""

    model: ServedModel
    sampling: Sampling
    streaming: Streaming
    converses: bool
    top: int | None
    """Likeliest tokens to show beside each; ``None`` for no log-probabilities."""
    end_ids: tuple[int, ...] = ()
    least: int = 1
    """New tokens that a prompt leaves room for; none where it is only echoed."""
    bound: str = "max_tokens"
    """Field of the request that bounds the new tokens."""


def build_requests(
    options: TextOptions, prompts: Sequence[PromptIds], names: Sequence[str]
) -> Iterator[tuple[int, Request]]:
    """Yield the place of the prompt, and the request, of every text. ``names`` are how a message calls each prompt.

    Text i draws by the seed and i, as prompt i of a file of ``mt-generate`` does. Raises ``ApiError``.
    """
    try:
        template = options.model.template if options.converses else None
        continuer = Continuer(options.model.loaded, options.sampling.config, template, joins=not options.converses)
    except MtError as error:
        said = str(error).replace("max_new_tokens", options.bound)
        raise ApiError(said, field="stop" if options.sampling.config.stop else "choices") from error
    for place, (prompt, name) in enumerate(zip(prompts, names, strict=True)):
        _check_room(options, prompt, name)
        try:
            continuer.room(prompt, options.least)
        except MtError as error:
            raise ApiError(f"{name}: {error}", field=name.partition("[")[0]) from error
        for number in range(options.sampling.n):
            yield place, _build_request(options, continuer, prompt, place * options.sampling.n + number)


def _build_request(options: TextOptions, continuer: Continuer, prompt: PromptIds, index: int) -> Request:
    try:
        made = continuer.request(prompt, index, streams=options.streaming.on)
        return replace(
            made,
            top_logprobs=options.top,
            logit_bias=options.sampling.logit_bias,
            end_ids=(*made.end_ids, *options.end_ids),
        )
    except MtError as error:  # a text would end within a choice
        raise ApiError(str(error), field="choices") from error


def refuse_too_many(jobs: int, capacity: int) -> None:
    """Raise ``ApiError`` for more texts than the server ever takes at once: before their requests are built, which takes its time."""
    if jobs > capacity:
        raise ApiError(
            f"{jobs:,} texts are asked for at once, and this server takes {capacity:,}; ask for fewer (n, or prompts)",
            field="n",
        )


def _check_room(options: TextOptions, prompt: PromptIds, name: str) -> None:
    count, most = len(split_prompt(prompt)[0]), options.model.loaded.max_seq_len
    if count + options.least > most:
        raise ApiError(
            f"{name}: the prompt has {count:,} tokens, and the model takes {most:,} here with the new ones; shorten it",
            field=name.partition("[")[0],
            code="context_length_exceeded",
        )
