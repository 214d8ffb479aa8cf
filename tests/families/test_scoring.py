"""Scores of every family are those of a plain forward of each text, however beginnings are shared; windows are shorter than the texts."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.families.test_families import FAMILIES

from mt_core.evaluation import Continuation
from mt_core.nn import Batch
from mt_core.plugins.host import PluginHost
from mt_train.assemble.parts import Parts
from mt_train.engine.build import fill_model
from mt_train.engine.processes import Process
from mt_train.evaluate.requests import Requests
from mt_train.evaluate.scoring import Scorer
from mt_train.plugins.resolve import resolve


def ask(chance: random.Random, size: int) -> list[Continuation]:
    """Shots that are shared, questions with long choices, and letters; some alone."""
    shots = [chance.randrange(size) for _ in range(40)]
    asked = []
    for number in range(9):
        question = (shots if number % 3 else []) + [chance.randrange(size) for _ in range(chance.randint(3, 30))]
        for length in ((1, 1, 1, 1), (5, 9, 2), (3,))[number % 3]:
            asked.append(Continuation(question, [chance.randrange(size) for _ in range(length)]))
    return asked


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_one_forward_for_each_text(family: str) -> None:
    parts = Parts.of(resolve({"model": FAMILIES[family], "train": {"sequence_len": 128}}, PluginHost.discover()))
    model = parts.model()
    fill_model(model, {}, seed=1, process=Process(0, 1, 0, torch.device("cpu")))
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(5)  # with the usual first values a wrong position or window would not show
    asked = ask(random.Random(0), parts.config.model.options.vocab_size)
    expected = []
    for context, target in asked:
        ids = torch.tensor([[*context, *target]])
        zeros = torch.zeros_like(ids)
        with torch.no_grad():
            hidden = model(Batch(ids, zeros, torch.arange(ids.shape[1])[None], zeros))
            log = model.head(hidden)[0].float().log_softmax(-1)
        places = range(len(context) - 1, ids.shape[1] - 1)
        total = sum(log[place, token].item() for place, token in zip(places, target, strict=True))
        expected.append((total, all(log[p].argmax().item() == t for p, t in zip(places, target, strict=True))))
    requests = Requests.of_continuations(asked, 128)
    for batch_size in (2, 8):
        found = requests.scores(Scorer(model, batch_size=batch_size).values(requests))
        np.testing.assert_allclose([each.logprob for each in found], [each[0] for each in expected], atol=1e-4)
        assert [each.greedy for each in found] == [each[1] for each in expected]
