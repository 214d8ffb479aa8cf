"""gpt-oss equals transformers' GptOssForCausalLM: logits, the gradient of every parameter, and greedy tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_conformance.forward import generate_greedily
from mt_core import RopeScaling
from mt_core.nn import Batch, KVCache
from mt_plugin_gpt_oss.model import GptOss

TOLERANCE = 1e-5
"""Relative, per tensor. fp32 has 6e-8; sums of a hundred terms in another order make some 1e-6."""
MODELS = ["YaRN", "tied, every third block global"]
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
    worst = {n: distance(p.grad, gradients[n].grad) for n, p in ours.named_parameters()}
    assert distance(logits, expected) < TOLERANCE
    assert set(worst) == set(gradients)
    assert max(worst.values()) < TOLERANCE, max(worst.items(), key=lambda item: item[1])


@pytest.mark.parametrize(
    "without",
    [{"rope_scaling": RopeScaling()}, {"window": 100}, {"swiglu_limit": 100.0}, {"swiglu_alpha": 1.0}, {"top_k": 1}],
    ids=lambda without: next(iter(without)),
)
def test_each_option_matters_in_these_tests(
    without: dict[str, Any], pair: Callable[..., Any], distance: Callable[..., float]
) -> None:
    ours, _ = pair("YaRN")
    plain = GptOss(ours.config.model_copy(update=without))
    plain.load_state_dict(ours.state_dict())
    assert distance(plain(rows([40])), ours(rows([40]))) > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_gives_what_the_whole_forward_gives(
    name: str, pair: Callable[..., Any], distance: Callable[..., float]
) -> None:
    ours, _ = pair(name)
    batch, cache, pieces = rows([40]), KVCache(), []
    for start, end in [(0, 12), (12, 13), (13, 20), (20, 40)]:
        cut = [x[:, start:end] for x in (batch.input_ids, batch.labels, batch.positions, batch.document_ids)]
        pieces.append(ours(Batch(*cut), cache))
    assert distance(torch.cat(pieces, 1), ours(batch)) < TOLERANCE
    assert cache.length == 40


def test_greedy_output_equals_transformers_token_for_token(pair: Callable[..., Any]) -> None:
    ours, theirs = (model.eval() for model in pair("YaRN"))
    theirs.generation_config.eos_token_id = theirs.generation_config.bos_token_id = None
    prompt = torch.randint(0, 61, (1, 12), generator=torch.Generator().manual_seed(12))
    mask = torch.ones_like(prompt)
    expected = theirs.generate(prompt, attention_mask=mask, max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert generate_greedily(ours, [prompt[0].tolist()], 30) == [expected[0, 12:].tolist()]
    assert len(set(expected[0, 12:].tolist())) > 3, "a model that repeats itself shows nothing"
