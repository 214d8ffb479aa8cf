"""A subject whose tokens are characters and whose scores a function says: what was asked can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mt_core.evaluation import Continuation, Score, TokenValues
from mt_core.generation import Generation, GenerationConfig
from mt_core.rows import Row, Sample


class CharacterTokenizer:
    """One token a character; 0 begins a text, 1 ends it. ``same`` characters are one token."""

    size, bos_id, eos_id, pad_id, chat_template = 0x110000, 0, 1, None, None

    def __init__(self, *, same: str = "", begins: bool = True) -> None:
        self._same = same
        self.begin_ids = (0,) if begins else ()

    def encode(self, text: str) -> list[int]:
        return [ord(self._same[0]) if each in self._same else ord(each) for each in text]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        return self.encode(text), [(place, place + 1) for place in range(len(text))]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(each) for each in ids if each > 1)


class ScriptedSubject:
    """Scores as ``logprob(context, target)`` says; see ``Subject``."""

    template: Any = None
    eos_ids = (1,)

    def __init__(
        self,
        logprob: Callable[[str, str], float] = lambda context, target: -float(len(target)),
        *,
        max_seq_len: int = 10_000,
        tokenizer: Any = None,
        texts: bool = True,
        written: Callable[[str, Sequence[str]], str] = lambda prompt, choices: choices[0],
    ) -> None:
        self.tokenizer: Any = tokenizer or CharacterTokenizer()
        self.max_seq_len, self.texts = max_seq_len, texts
        self._logprob, self._written = logprob, written
        self.asked: list[tuple[str, str]] = []
        self.requests: list[Continuation] = []
        self.configs: list[GenerationConfig] = []

    def score(self, requests: Sequence[Continuation]) -> list[Score]:
        self.requests += requests
        texts = [(self.tokenizer.decode(context), self.tokenizer.decode(target)) for context, target in requests]
        assert all(len(each.context) + len(each.target) - 1 <= self.max_seq_len for each in requests)
        self.asked += texts
        return [Score(self._logprob(*each), False) for each in texts]

    def token_values(self, samples: Sequence[Sample], *, top: int = 1) -> list[TokenValues]:
        raise NotImplementedError

    def generate(self, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[Generation]:
        self.configs.append(config)
        texts = [self._written(self.tokenizer.decode(prompt), config.choices) for prompt in prompts]
        return [Generation(text, tuple(self.tokenizer.encode(text)), "eos", 1) for text in texts]

    def encode(self, rows: Iterable[Row]) -> list[Sample]:
        raise NotImplementedError
