"""Trains with and without an evaluation on many layouts in one launch. Run by test_subject.py; the cases are those of Bench."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.train.engine.layout_worker import Bench, Losses, main

from mt_core.evaluation import Continuation, Findings, Subject
from mt_core.generation import GenerationConfig, SamplingRules
from mt_train.assemble.session import Session
from mt_train.checkpoint.store import find, verify
from mt_train.engine.random_state import random_numbers, random_tensors, seed_everything

TEXTS = [
    "The sea is wide.",
    "The sea is wide and blue, says the old man.",
    "No",
    "a b c d e f g h i j k l m n o p q r s t",
]
CHOICES = [" blue", " wide and deep", "!", "?", " the old man"]


class ProbingEvaluation:
    """Asks everything that a subject can answer, and spoils all random generators while it does."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.on_request: Any = lambda: None

    def run(self, subject: Subject) -> Findings:
        torch.rand(3), random.random(), np.random.rand()
        encode = subject.tokenizer.encode
        # 7 contexts that share beginnings, of which some are asked five times: no count that divides by ranks or batches
        contexts = [encode(text) for text in [*TEXTS, TEXTS[1] + " And", "x", "The sea"]]
        asked = [Continuation(context, encode(choice)) for context in contexts for choice in CHOICES]
        scores = subject.score(asked)
        self.on_request()
        values = subject.token_values(
            subject.encode([{"id": "a:1", "prompt": "The", "response": "sea is wide"}]), top=2
        )
        again = subject.score(asked[:1])
        texts: list[Any] = []
        if subject.texts:
            wishes = GenerationConfig(max_new_tokens=6, logprobs=True)
            greedy = GenerationConfig(max_new_tokens=6, rules=SamplingRules(greedy=True))
            beams = GenerationConfig(max_new_tokens=6, rules=SamplingRules(num_beams=3))
            prompts = contexts[:5]
            texts = [[each.text for each in subject.generate(prompts, config)] for config in (wishes, greedy, beams)]
        self.seen = [[score.logprob, score.greedy] for score in scores]
        self.seen += [[value, True] for value in values[0].logprobs.tolist()]
        assert abs(again[0].logprob - scores[0].logprob) < 1e-5
        self.texts = texts
        return Findings(figures={"mean": sum(score.logprob for score in scores) / len(scores)})


class EvaluatingBench(Bench):
    """Compares runs that differ in an evaluation alone."""

    def add_evaluation(self, session: Session) -> ProbingEvaluation:
        """Give a session one evaluation."""
        probing = ProbingEvaluation()
        session.evaluations._built, session.evaluations._every = {"probing": probing}, {"probing": 1}
        return probing

    def compare(self, case: dict[str, Any]) -> dict[str, Any]:
        """What differs between a run without evaluation and one with it, and what it was answered."""
        plain, losses = self.session(case), Losses()
        plain.loop(plain.restore(None, None), losses)
        before = self.state(plain, losses)
        self.deepspeed.utils.groups.mpu = None
        session, losses = self.session(case), Losses()
        found = self.run_probe(session, losses)
        after = self.state(session, losses)
        return {**found, "different": [name for name in before if before[name] != after[name]]}

    def answer(self, case: dict[str, Any]) -> dict[str, Any]:
        """What a run with the evaluation was answered."""
        return self.run_probe(self.session(case), Losses())

    def run_probe(self, session: Session, losses: Losses) -> dict[str, Any]:
        probing = self.add_evaluation(session)
        session.loop(session.restore(None, None), losses)
        return {
            "figures": [record.evaluation.get("eval_probing_mean") for record in losses.records],
            "answers": probing.seen,
            "texts": probing.texts,
        }

    def stop(self, case: dict[str, Any]) -> dict[str, Any]:
        """What differs between a run that is stopped inside its first evaluation and resumed, and one that is not."""
        whole, losses = self.session(case), Losses()
        self.add_evaluation(whole)
        whole.loop(whole.restore(None, None), losses)
        expected = self.state(whole, losses)
        with tempfile.TemporaryDirectory() as folder:
            shared = [folder]
            dist.broadcast_object_list(shared)
            output = Path(shared[0])
            self.deepspeed.utils.groups.mpu = None
            first, losses = self.session(case, output), Losses()
            last = self.process.rank == self.process.world - 1
            self.add_evaluation(first).on_request = lambda: setattr(first.stopper, "_signal", "SIGTERM" if last else "")
            finished = first.loop(first.restore(None, None), losses)
            checkpoint = find(output)
            manifest = verify(checkpoint)
            self.deepspeed.utils.groups.mpu = None
            second = self.session(case, None, checkpoint)
            self.add_evaluation(second)
            seed_everything(99, self.process.rank)
            second.loop(second.restore(checkpoint, manifest), losses)
            dist.barrier()
            found = self.state(second, losses)
        return {
            "different": [name for name in expected if expected[name] != found[name]],
            "finished": finished,
            "owed": manifest["pending"] is not None,
            "evaluated": manifest["evaluated"],
        }

    def state(self, session: Session, losses: Losses) -> Mapping[str, Any]:
        """Weights, moments, random generators and records without what an evaluation adds."""
        found = self.summary(session.engine, losses)
        states = {name: value.tolist() for name, value in random_tensors(torch.device("cpu")).items()}
        held_out = [record.evaluation.get("eval_loss") for record in losses.records]
        names = ("losses", "norms", "tokens", "weights", "state")
        return {
            **{name: found[name] for name in names},
            **states,
            "numbers": str(random_numbers()),
            "held out": held_out,
        }


if __name__ == "__main__":
    main(EvaluatingBench)
