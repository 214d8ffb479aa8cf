from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mt_core.generation import GenerationConfig


@dataclass
class Answer:
    text: str
    ids: list[int]
    finish: str
    logprobs: list[float] | None = None


class Faithful:
    """A sampler without a fault: the policy writes."""

    full_support: Any = True

    def __init__(self, config: Any) -> None:
        pass

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        return [self.answer(each, config) for each in policy.generate(prompts, config)]

    def answer(self, drawn: Any, config: GenerationConfig) -> Answer:
        ids = [*drawn.ids, *([] if drawn.end_id is None else [drawn.end_id])]
        return Answer(drawn.text, ids, drawn.finish, self.logprobs(drawn, config))

    def logprobs(self, drawn: Any, config: GenerationConfig) -> list[float] | None:
        return list(drawn.logprobs) if config.logprobs and config.rules.temperature == 1 else None


class Vague(Faithful):
    full_support = "mostly"


class Needy(Faithful):
    """Reads the first prompt, where there may be none."""

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        assert prompts[0]
        return super().sample(policy, prompts, config)


class Merging(Faithful):
    """Answers prompts that are the same once."""

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        return super().sample(policy, [list(each) for each in dict.fromkeys(map(tuple, prompts))], config)


class Endless(Faithful):
    """Goes on by a token."""

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        return super().sample(policy, prompts, replace(config, max_new_tokens=config.max_new_tokens + 1))


class Wordless(Faithful):
    def answer(self, drawn: Any, config: GenerationConfig) -> Answer:
        return Answer("", [], "eos")


class Foreign(Faithful):
    """Has ids as its library gives them."""

    def answer(self, drawn: Any, config: GenerationConfig) -> Answer:
        return replace(super().answer(drawn, config), ids=list(np.array(drawn.ids)))


class Renaming(Faithful):
    def answer(self, drawn: Any, config: GenerationConfig) -> Answer:
        return replace(super().answer(drawn, config), finish="stopped")


class Claiming(Faithful):
    """Says that every answer has ended."""

    def answer(self, drawn: Any, config: GenerationConfig) -> Answer:
        return replace(super().answer(drawn, config), finish="eos", ids=[3])


class Retelling(Faithful):
    def answer(self, drawn: Any, config: GenerationConfig) -> Answer:
        return replace(super().answer(drawn, config), text="answer")


class Stale(Faithful):
    """Writes each prompt's answer once, and keeps it."""

    def __init__(self, config: Any) -> None:
        self.kept: list[Answer] = []

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        self.kept = self.kept or super().sample(policy, prompts, config)
        return self.kept


class Peeking(Faithful):
    """Looks at the first weight alone."""

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        self.walk = policy.weights()
        next(self.walk)
        return super().sample(policy, prompts, config)


class Hoarding(Faithful):
    """Wants to share tensors."""

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        policy.once(lambda: torch.zeros(1))
        return super().sample(policy, prompts, config)


class Short(Faithful):
    def logprobs(self, drawn: Any, config: GenerationConfig) -> list[float] | None:
        return list(drawn.logprobs[:1])


class Tepid(Faithful):
    """Has the log-probabilities of temperature 1, whatever the temperature is."""

    def logprobs(self, drawn: Any, config: GenerationConfig) -> list[float] | None:
        return list(drawn.logprobs) if config.logprobs else None


class Trimming(Faithful):
    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        found = super().sample(policy, prompts, config)
        for prompt in prompts:
            prompt.clear()
        return found


class Drawing(Faithful):
    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        torch.rand(1)
        return super().sample(policy, prompts, config)


class Fixed(Faithful):
    """Draws with a seed of its own."""

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        return super().sample(policy, prompts, replace(config, seed=7))


class Copying(Faithful):
    """Writes one answer to prompts that are the same."""

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Answer]:
        different = [list(each) for each in dict.fromkeys(map(tuple, prompts))]
        answers = dict(zip(map(tuple, different), super().sample(policy, different, config), strict=True))
        return [answers[tuple(each)] for each in prompts]
