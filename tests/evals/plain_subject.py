"""A subject that scores and writes with one forward a request, and one that says what it was told to: others are compared with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from mt_core.evaluation import Continuation, Score, TokenValues
from mt_core.generation import Generation, GenerationConfig
from mt_core.nn import Batch
from mt_core.protocols import Template, Tokenizer
from mt_core.rows import Row, Sample
from mt_train.data.templates import build_template
from mt_train.generation.continuation import continue_prompts
from mt_train.generation.loaded_model import LoadedModel


class PlainSubject:
    """A loaded model; see ``Subject``."""

    texts = True

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.template: Template = loaded.template or build_template(loaded.tokenizer)
        self.max_seq_len, self.eos_ids = loaded.max_seq_len, loaded.eos_ids
        self.asked: list[Continuation] = []
        self.prompts: list[Sequence[int]] = []

    @torch.inference_mode()
    def score(self, requests: Sequence[Continuation]) -> list[Score]:
        self.asked += requests
        return [self._score(list(context), list(target)) for context, target in requests]

    def _score(self, context: list[int], target: list[int]) -> Score:
        assert context
        assert target
        assert len(context) + len(target) <= self.max_seq_len + 1
        ids = torch.tensor([[*context, *target][:-1]])
        zeros = torch.zeros_like(ids)
        batch = Batch(ids, zeros, torch.arange(ids.shape[1])[None], zeros).with_index()
        hidden = self.loaded.model(batch)[0, len(context) - 1 :]
        values = self.loaded.model.head(hidden).float().log_softmax(-1)
        wanted = torch.tensor(target)
        logprob = values.gather(1, wanted[:, None]).double().sum()
        return Score(float(logprob), bool((values.argmax(-1) == wanted).all()))

    def token_values(self, samples: Sequence[Sample], *, top: int = 1) -> list[TokenValues]:
        raise NotImplementedError

    def generate(self, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[Generation]:
        self.prompts += prompts
        return continue_prompts(self.loaded, prompts, config, batch_size=1)

    def encode(self, rows: Iterable[Row]) -> list[Sample]:
        raise NotImplementedError


class ScriptedSubject:
    """Writes what ``answer(prompt text, number)`` says; see ``Subject``. Its tokens are bytes."""

    texts = True

    def __init__(self, answer: Callable[[str, int], str], *, max_seq_len: int = 4096, tokenizer: Any = None) -> None:
        from mt_plugin_standard.tokenizers.byte import ByteTokenizer

        self.tokenizer: Any = tokenizer or ByteTokenizer()
        self.template = build_template(self.tokenizer)
        self.max_seq_len, self.eos_ids = max_seq_len, ()
        self.answer = answer
        self.prompts: list[str] = []
        self.configs: list[GenerationConfig] = []

    def score(self, requests: Sequence[Continuation]) -> list[Score]:
        return [Score(-1.0, False) for _ in requests]

    def token_values(self, samples: Sequence[Sample], *, top: int = 1) -> list[TokenValues]:
        raise NotImplementedError

    def generate(self, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[Generation]:
        self.configs.append(config)
        found = []
        for number, prompt in enumerate(prompts):
            assert len(prompt) < self.max_seq_len
            text = self.tokenizer.decode(prompt)
            self.prompts.append(text)
            said = self.answer(text, number)
            ids = self.tokenizer.encode(said)
            ends = [at for stop in config.stop if (at := said.find(stop)) >= 0]
            finish = "stop" if ends else "length" if len(ids) > config.max_new_tokens else "eos"
            said = said[: min(ends)] if ends else self.tokenizer.decode(ids[: config.max_new_tokens])
            found.append(Generation(said, tuple(self.tokenizer.encode(said)), finish))
        return found

    def encode(self, rows: Iterable[Row]) -> list[Sample]:
        raise NotImplementedError
