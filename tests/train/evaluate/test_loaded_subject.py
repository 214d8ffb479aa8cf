"""A loaded subject scores as transformers does on the exported weights: with an adapter, and after it was merged."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mt_core.evaluation import Continuation
from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.plugins.host import PluginHost
from mt_tools.cli.convert import main as convert
from mt_tools.cli.export import main as export
from mt_train import load_run, load_weights, train
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_file import run_config
from mt_train.assemble.subjects import loaded_subject
from mt_train.checkpoint.store import find
from mt_train.evaluate.subject import LoadedSubject
from mt_train.plugins.resolve import resolve

ADAPTERS = {"full": "full", "lora": {"name": "lora", "rank": 4}, "dora": {"name": "dora", "rank": 4}}


@pytest.fixture(scope="module", params=ADAPTERS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose adapter has learned something."""
    folder = tmp_path_factory.mktemp("subject")
    raw = {
        "model": {"name": "llama", "n_layers": 2, "dim": 32, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 64},
        "adapter": ADAPTERS[request.param],
        "optimizer": {"name": "adamw", "lr": 0.05},
        "train": {"steps": 4, "micro_batch_size": 2, "sequence_len": 64},
        "data": {"eval": None},
    }
    train(raw, output=folder / "run")
    if request.param == "full":
        assert convert([str(folder / "run"), str(folder / "whole")]) == 0
    else:
        assert export(["--run", str(folder / "run"), "--merge", "--output", str(folder / "whole")]) == 0
    return folder


def subject_of(folder: Path) -> LoadedSubject:
    parts = Parts.of(resolve(run_config(find(folder)), PluginHost.discover()))
    return loaded_subject(parts, load_run(folder), batch_size=3)


def continuations() -> list[Continuation]:
    chance = random.Random(5)
    shots = [chance.randrange(256) for _ in range(40)]
    found = []
    for number in range(6):
        context = (shots if number % 2 else []) + [chance.randrange(256) for _ in range(9)]
        found += [Continuation(context, [chance.randrange(256) for _ in range(1 + number % 3)]) for _ in range(4)]
    return found


def test_scores_are_those_of_transformers_on_the_merged_weights(run: Path) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(run / "whole", dtype=torch.float32).eval()
    found = subject_of(run / "run").score(continuations())
    expected = []
    for context, target in continuations():
        with torch.no_grad():
            log = theirs(torch.tensor([[*context, *target]])).logits[0].log_softmax(-1)
        places = range(len(context) - 1, len(context) + len(target) - 1)
        expected.append(sum(log[place, token].item() for place, token in zip(places, target, strict=True)))
    np.testing.assert_allclose([each.logprob for each in found], expected, atol=1e-4)
    merged = load_weights("llama", run / "whole")
    parts = Parts.of(resolve(run_config(find(run / "run")), PluginHost.discover()))
    again = loaded_subject(parts, merged, batch_size=8).score(continuations())
    np.testing.assert_allclose([each.logprob for each in again], expected, atol=1e-4)
    assert [each.greedy for each in again] == [each.greedy for each in found]


def test_texts_have_the_log_probabilities_that_scores_have(run: Path) -> None:
    subject = subject_of(run / "run")
    config = GenerationConfig(max_new_tokens=7, logprobs=True, rules=SamplingRules(temperature=0.7, top_k=50))
    prompts = [each.context for each in continuations()[::4]]
    for prompt, text in zip(prompts, subject.generate(prompts, config), strict=True):
        written = [*text.ids, *([] if text.end_id is None else [text.end_id])]
        assert len(text.logprobs) == len(written)
        [score] = subject.score([Continuation(prompt, written)])
        assert sum(text.logprobs) == pytest.approx(score.logprob, abs=1e-4)
