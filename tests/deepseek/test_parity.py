"""DeepSeek equals transformers' DeepseekV2 and DeepseekV3: logits, the gradient of every parameter, and greedy tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_conformance.forward import generate_greedily
from mt_core import RopeScaling
from mt_core.nn import Batch, KVCache
from mt_plugin_deepseek.model import CHOICE_BIAS, Deepseek

TOLERANCE = 1e-5
"""Relative, per tensor. fp32 has 6e-8; sums of a hundred terms in another order make some 1e-6."""
MODELS = ["V2 without groups", "V2", "V3"]
LENGTHS = {"one document": [40], "packed": [9, 20, 11]}


def rows(lengths: list[int], count: int = 2) -> Batch:
    ids = torch.randint(0, 61, (count, sum(lengths)), generator=torch.Generator().manual_seed(3))
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(count, -1)
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).expand(count, -1)
    return Batch(ids, torch.zeros_like(ids), positions, documents).with_index()


def separate_logits(theirs: Any, ids: Tensor, lengths: list[int]) -> Tensor:
    """Their logits of each document in a batch of its own, put together again."""
    return torch.cat([theirs(piece).logits for piece in ids.split(lengths, 1)], 1)


@pytest.mark.parametrize("given", LENGTHS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_equal_transformers_within_1e_5(
    name: str, given: str, pair: Callable[..., Any], distance: Callable[..., float]
) -> None:
    ours, theirs = pair(name)
    batch = rows(LENGTHS[given])
    logits, expected = ours.head(ours(batch)), separate_logits(theirs, batch.input_ids, LENGTHS[given])
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = dict(theirs.named_parameters())
    trained = {n: p for n, p in ours.named_parameters() if not n.endswith(CHOICE_BIAS)}
    worst = {n: distance(p.grad, gradients[n].grad) for n, p in trained.items()}
    assert distance(logits, expected) < TOLERANCE
    assert set(worst) == set(gradients)
    assert max(worst.values()) < TOLERANCE, max(worst.items(), key=lambda item: item[1])


WITHOUT: dict[str, tuple[str, dict[str, Any]]] = {
    "YaRN": ("V3", {"rope_scaling": RopeScaling()}),
    "YaRN's temperature": ("V3", {"rope_scaling": RopeScaling(type="yarn", factor=4.0, original_max_seq_len=16)}),
    "groups of V2": ("V2", {"n_groups": 1, "top_groups": 1}),
    "groups of V3": ("V3", {"n_groups": 1, "top_groups": 1}),
    "weights that add up to one": ("V3", {"normalise": False}),
    "the factor of experts": ("V2", {"routed_scale": 1.0}),
}


@pytest.mark.parametrize("option", WITHOUT)
def test_each_option_matters_in_these_tests(
    option: str, pair: Callable[..., Any], distance: Callable[..., float]
) -> None:
    name, changes = WITHOUT[option]
    ours, _ = pair(name)
    plain = Deepseek(ours.config.model_copy(update=changes))
    plain.load_state_dict(ours.state_dict())
    assert distance(plain(rows([40])), ours(rows([40]))) > 1e-3


def test_the_bias_chooses_experts_and_weighs_none(pair: Callable[..., Any], distance: Callable[..., float]) -> None:
    """A constant one changes nothing, since it adds to all scores alike; another one does."""
    ours, _ = pair("V3")
    before = ours(rows([40]))
    biases = [p for n, p in ours.named_parameters() if n.endswith(CHOICE_BIAS)]
    with torch.no_grad():
        for bias in biases:
            bias.add_(0.25)
        assert distance(ours(rows([40])), before) < TOLERANCE
        for bias in biases:
            bias.zero_()
        assert distance(ours(rows([40])), before) > 1e-3


@pytest.mark.parametrize("name", ["V2 without groups", "V3"])
def test_a_cache_of_latents_gives_what_the_whole_forward_gives(
    name: str, pair: Callable[..., Any], distance: Callable[..., float]
) -> None:
    ours, _ = pair(name)
    batch, cache, pieces = rows([40]), KVCache(), []
    for start, end in [(0, 12), (12, 13), (13, 20), (20, 40)]:
        cut = [x[:, start:end] for x in (batch.input_ids, batch.labels, batch.positions, batch.document_ids)]
        pieces.append(ours(Batch(*cut), cache))
    assert distance(torch.cat(pieces, 1), ours(batch)) < TOLERANCE
    latents, shared = cache.get(0)
    assert (latents.shape, shared.shape) == ((2, 40, 1, 24), (2, 40, 1, 8))


@pytest.mark.parametrize("name", ["V2 without groups", "V3"])
def test_greedy_output_equals_transformers_token_for_token(name: str, pair: Callable[..., Any]) -> None:
    ours, theirs = (model.eval() for model in pair(name))
    theirs.generation_config.eos_token_id = theirs.generation_config.bos_token_id = None
    prompt = torch.randint(0, 61, (1, 12), generator=torch.Generator().manual_seed(12))
    mask = torch.ones_like(prompt)
    expected = theirs.generate(prompt, attention_mask=mask, max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert generate_greedily(ours, [prompt[0].tolist()], 30) == [expected[0, 12:].tolist()]
    assert len(set(expected[0, 12:].tolist())) > 3, "a model that repeats itself shows nothing"
