"""What the core builds on, promised by this model. Copy these tests with the plugin: they hold for any family."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from mt_core import Sample
from mt_core.nn import Batch, KVCache, TokenObjective, tensor_generator
from mt_plugin_hello.config import VARIANTS, GatedConvConfig
from mt_plugin_hello.model import GatedConv


@pytest.fixture
def model() -> GatedConv:
    """The default size, with the weights that the core would draw for seed 0."""
    built = GatedConv(GatedConvConfig(**VARIANTS["tiny"]))
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            built.init_tensor(name, parameter, tensor_generator(0, name))
    return built


def pack(*documents: bytes) -> Batch:
    """One row that holds these documents, as the core makes it."""
    samples = [Sample(list(text), [True] * len(text), f"document {number}") for number, text in enumerate(documents)]
    return TokenObjective().collate([samples], length=sum(map(len, documents)))


def piece(batch: Batch, start: int, end: int) -> Batch:
    tensors = (batch.input_ids, batch.labels, batch.positions, batch.document_ids)
    return Batch(*(tensor[:, start:end] for tensor in tensors))


def test_the_plugin_says_what_it_offers_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from mt_plugin_hello.plugin import *; mt_model_configs()"
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)


def test_later_tokens_never_change_earlier_outputs(model: GatedConv) -> None:
    one, other = model(pack(b"the same beginning, one end")), model(pack(b"the same beginning, another"))
    assert torch.equal(one[:, :20], other[:, :20])
    assert not torch.equal(one[:, 20:], other[:, 20:])


def test_documents_in_one_row_never_see_each_other(model: GatedConv) -> None:
    one, other = model(pack(b"a first text", b"the second")), model(pack(b"FIRST, AGAIN", b"the second"))
    assert torch.equal(one[:, 12:], other[:, 12:])


@pytest.mark.parametrize("prompt", [1, 2, 7])
def test_generating_token_by_token_gives_the_outputs_of_one_forward(model: GatedConv, prompt: int) -> None:
    whole, cache = pack(b"a prompt and what follows it"), KVCache()
    length = whole.input_ids.shape[1]
    cuts = [0, *range(prompt, length + 1)]
    pieces = [model(piece(whole, start, end), cache) for start, end in pairwise(cuts)]
    torch.testing.assert_close(torch.cat(pieces, 1), model(whole), rtol=1e-5, atol=1e-5)


def test_one_step_in_the_gradient_lowers_the_loss(model: GatedConv) -> None:
    objective, batch = TokenObjective(), pack(b"a text to learn by heart", b"and another one")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        loss = objective.loss(model(batch), model.head, batch).loss_sum
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[1] < losses[0]
