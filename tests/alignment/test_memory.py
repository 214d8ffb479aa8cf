"""Memory of pairs beside fine-tuning on the same tokens: a step of DPO, and its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from mt_core import Sample
from mt_core.nn import Batch, TokenObjective
from mt_core.nn.loss import chunk_tokens
from mt_core.plugins.host import PluginHost
from mt_plugin_alignment.losses.sigmoid import Sigmoid, SigmoidConfig
from mt_plugin_alignment.objectives.config import DpoConfig
from mt_plugin_alignment.objectives.preference import PreferenceObjective

PROMPT, ANSWER, PAIRS, VOCABULARY = 40, 216, 6, 3000
CHUNK = chunk_tokens(torch.device("cpu"))
"""Trained are 2,592 tokens: logits of one chunk of 512 are the largest tensor, and there are six chunks."""


@pytest.fixture(scope="module")
def model() -> nn.Module:
    component = PluginHost.discover().get("train_model", "llama").component
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 64, "max_seq_len": 512}
    built: nn.Module = component.build(component.config(vocab_size=VOCABULARY, **sizes))
    return built


def dpo(**options: Any) -> PreferenceObjective:
    tokenizer: Any = SimpleNamespace(pad_id=0)
    template: Any = None
    return PreferenceObjective(tokenizer, template, DpoConfig(**options), [Sigmoid(SigmoidConfig())], [1.0])


def batch_of(objective: TokenObjective) -> Batch:
    """Rows of two answers each, which are documents of a pair or are not."""
    ids = torch.randint(VOCABULARY, (PAIRS, 2, PROMPT + ANSWER), generator=torch.Generator().manual_seed(0)).tolist()
    trained = [False] * PROMPT + [True] * ANSWER
    if isinstance(objective, PreferenceObjective):
        rows = [[Sample([*one, *other], trained * 2, "", None, [len(one), len(other)])] for one, other in ids]
    else:
        rows = [[Sample(one, trained, ""), Sample(other, trained, "")] for one, other in ids]
    return objective.collate(rows, length=2 * (PROMPT + ANSWER)).with_index()


def largest_sum(run: Callable[[], object]) -> int:
    """Bytes of all tensors that were made in here and lived at one time, at most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def step(objective: TokenObjective, model: Any, batch: Batch) -> None:
    model.zero_grad()
    objective.loss(model(batch), model.head, batch).loss_sum.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("options", [{}, {"wpo": True}, {"sft": 1.0, "nll_on": "all"}], ids=str)
def test_a_step_holds_what_fine_tuning_on_the_same_tokens_does(model: nn.Module, options: dict[str, Any]) -> None:
    """5 % more at most."""
    tuning, pairs = TokenObjective(), dpo(**options)
    of_pairs = batch_of(pairs)
    with_reference = replace(of_pairs, documents={"reference": torch.zeros(2 * PAIRS)})
    found = {
        "sft": largest_sum(lambda: step(tuning, model, batch_of(tuning))),
        "dpo": largest_sum(lambda: step(pairs, model, with_reference)),
    }
    assert found["sft"] > CHUNK * VOCABULARY * 4, "the logits of a chunk are among them"
    assert found["dpo"] <= 1.05 * found["sft"]


def test_a_reference_holds_one_chunk_of_logits_and_no_activations(model: Any) -> None:
    pairs, chunk = dpo(), CHUNK * VOCABULARY * 4
    batch = batch_of(pairs)
    with torch.no_grad():
        held = largest_sum(lambda: pairs.measure(model(batch), model.head, batch))
    assert chunk < held < 1.5 * chunk
