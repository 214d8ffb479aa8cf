from __future__ import annotations

import os
import random
from itertools import count
from typing import Any

import torch

from mt_core.evaluation import Continuation, Findings
from mt_core.generation import GenerationConfig

CALLS = count()
GREEDY = GenerationConfig(max_new_tokens=2)


class Sober:
    """An evaluation without a fault: which of two answers is the likelier one."""

    def __init__(self, config: Any, *, split: str) -> None:
        self.calls = 0

    def run(self, subject: Any) -> Findings:
        self.calls += 1
        one, other = self.ask(subject)
        rows = [{"id": 1, "one": one, "other": other}]
        return Findings(figures={"margin": one - other, "mean": (one + other) / 2}, rows=rows)

    def ask(self, subject: Any) -> tuple[float, float]:
        encode = subject.tokenizer.encode
        one, other = subject.score([Continuation(encode("The sea"), encode(each)) for each in (" is", " was wide")])
        return one.logprob, other.logprob


class Counting(Sober):
    def run(self, subject: Any) -> Findings:
        super().run(subject)
        return Findings(figures={"calls": float(self.calls)})


class Moody(Sober):
    def run(self, subject: Any) -> Findings:
        return Findings(figures=super().run(subject).figures, rows=[{"drawn": next(CALLS)}])


class Drawing(Sober):
    def run(self, subject: Any) -> Findings:
        random.random(), torch.rand(2)
        return super().run(subject)


class Misnamed(Sober):
    def run(self, subject: Any) -> Findings:
        return Findings(figures={"Accuracy (%)": super().run(subject).figures["margin"]})


class Boxed(Sober):
    def run(self, subject: Any) -> Findings:
        figures = super().run(subject).figures
        return Findings(figures=figures, groups={"law": {"margin": torch.tensor(1.0)}})  # type: ignore[dict-item]


class Bare(Sober):
    def run(self, subject: Any) -> Findings:
        super().run(subject)
        return Findings(figures={})


class Unwritten(Sober):
    def run(self, subject: Any) -> Findings:
        return Findings(figures=super().run(subject).figures, rows=[{"ids": torch.zeros(2)}])


class Idle(Sober):
    def run(self, subject: Any) -> Findings:
        return Findings(figures={"margin": 1.0})


class Writing(Sober):
    """Says nothing of the texts that it needs."""

    def run(self, subject: Any) -> Findings:
        (text,) = subject.generate([subject.tokenizer.encode("The sea")], GREEDY)
        return Findings(figures=dict(super().run(subject).figures) | {"length": float(len(text.text))})


class Dividing(Sober):
    def run(self, subject: Any) -> Findings:
        one, other = self.ask(subject)
        return Findings(figures={"ratio": 1 / (one - other - 1)})  # on paper each answer is one less than that before


class Choosing(Sober):
    """Has the figures that the answers allow."""

    def run(self, subject: Any) -> Findings:
        one, other = self.ask(subject)
        return Findings(figures={"mean": one + other} | ({"margin": one - other} if one % 1 else {}))


class Ranked(Sober):
    """Divides what each process has by the number of processes."""

    def run(self, subject: Any) -> Findings:
        one, _ = self.ask(subject)
        return Findings(figures={"margin": one / int(os.environ.get("WORLD_SIZE", "1"))})
