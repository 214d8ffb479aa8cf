"""A subject without a model: counts what an evaluation asks, before weights are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mt_core.evaluation import Continuation, Score, TokenValues
from mt_core.generation import Generation, GenerationConfig
from mt_core.protocols import Template, Tokenizer
from mt_core.rows import Row, Sample
from mt_train.evaluate.requests import Requests
from mt_train.generation.request import PromptIds, split_prompt


class Encode(Protocol):
    """Makes samples of rows as a run does."""

    def __call__(self, rows: Iterable[Row]) -> list[Sample]: ...

    def prepare(self, row: Row) -> Row:
        """Return a row as the run's objective gets it."""
        ...


SHOWN = 3
"""Prompts that are kept to be shown."""
LONGEST_SHOWN = 1200
"""Characters of one; its middle is left out."""


@dataclass(frozen=True)
class PromptExample:
    """A prompt and its scored part, as text; of a text to be generated that part is empty."""

    prompt: str
    scored: str


@dataclass
class RequestCount:
    """Requests of one evaluation. ``tokens`` are those that a model has to read, each row once; ``longest`` is a prompt (tokens)."""

    scores: int = 0
    texts: int = 0
    tokens: int = 0
    longest: int = 0
    new_tokens: int = 0
    """Tokens that may be generated, at most."""
    examples: list[PromptExample] = field(default_factory=list)


class PaperSubject:
    """Answers with nothing, and keeps in ``count`` what it was asked (``mt_core.evaluation.Subject``)."""

    texts = True

    def __init__(
        self, tokenizer: Tokenizer, template: Template, encode: Encode, *, max_seq_len: int, eos_ids: tuple[int, ...]
    ) -> None:
        self.tokenizer, self.template, self._encode = tokenizer, template, encode
        self.max_seq_len, self.eos_ids = max_seq_len, eos_ids
        self.count = RequestCount()

    @property
    def requests(self) -> int:
        """Everything that was asked for."""
        return self.count.scores + self.count.texts

    def score(self, requests: Sequence[Continuation]) -> list[Score]:
        """See ``Subject``: each target is less likely than the one before, so that nothing looks like a tie."""
        first = self.count.scores
        self._read(Requests.of_continuations(requests, self.max_seq_len), len(requests))
        self._show((each.context, each.target) for each in requests)
        return [Score(-1.0 - first - number, False) for number, _ in enumerate(requests)]

    def token_values(self, samples: Sequence[Sample], *, top: int = 1) -> list[TokenValues]:
        """See ``Subject``: zeros."""
        self._read(Requests.of_samples(samples, self.max_seq_len), len(samples))
        self._show((each.ids[:1], each.ids[1:]) for each in samples)
        counts = [int(np.asarray(each.trained, dtype=bool)[1:].sum()) for each in samples]
        return [TokenValues(np.zeros(n), np.zeros((n, top), np.int64), np.zeros((n, top))) for n in counts]

    def generate(self, prompts: Sequence[PromptIds], config: GenerationConfig) -> list[Generation]:
        """See ``Subject``: empty texts, or the first choice."""
        ids = [split_prompt(prompt)[0] for prompt in prompts]
        self.count.texts += len(prompts)
        self.count.tokens += sum(map(len, ids))
        self.count.longest = max(self.count.longest, *map(len, ids), 0)
        self.count.new_tokens += len(prompts) * config.max_new_tokens
        self._show((prompt, ()) for prompt in ids)
        return [Generation(config.choices[0] if config.choices else "", (), "eos") for _ in prompts]

    def encode(self, rows: Iterable[Row]) -> list[Sample]:
        """See ``Subject``."""
        return self._encode(rows)

    def prepare(self, row: Row) -> Row:
        """See ``Subject``."""
        return self._encode.prepare(row)

    def _read(self, asked: Requests, count: int) -> None:
        self.count.scores += count
        self.count.tokens += asked.tokens
        self.count.longest = max(self.count.longest, *map(len, asked.rows), 0)

    def _show(self, asked: Iterable[tuple[Sequence[int], Sequence[int]]]) -> None:
        for prompt, scored in asked:
            if len(self.count.examples) == SHOWN:
                return
            before = self.tokenizer.decode(list(prompt))
            after = self.tokenizer.decode([*prompt, *scored]).removeprefix(before)
            each = PromptExample(_shorten(before), _shorten(after))
            if all(each.prompt != other.prompt for other in self.count.examples):
                self.count.examples.append(each)


def _shorten(text: str) -> str:
    half = LONGEST_SHOWN // 2
    return text if len(text) <= LONGEST_SHOWN else f"{text[:half]} … {text[-half:]}"
