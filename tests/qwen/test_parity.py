"""Qwen equals transformers' Qwen2 and Qwen3: logits, and the gradient of every parameter.

``MT_PARITY_TABLE=FILE pytest tests/gemma tests/qwen`` writes down how far they are apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_core import RopeScaling
from mt_core.nn import Batch, KVCache
from mt_plugin_qwen.model import Qwen

TOLERANCE = 1e-5
"""Relative, per tensor. fp32 has 6e-8; sums of a hundred terms in another order make some 1e-6."""
MODELS = [
    "2.5, tied",
    "2.5, untied",
    "2.5, one key head",
    "2.5, YaRN",
    "2.5, window 7 from block 1",
    "3, tied",
    "3, untied",
    "3, heads wider than the model",
    "3, YaRN",
    "3, linear scaling",
    "3, Llama 3 scaling",
    "3, window 5",
    "3, experts",
    "3, experts in some blocks, window 5",
]
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
    name: str, given: str, pair: Callable[..., Any], distance: Callable[..., float], record: Callable[..., None]
) -> None:
    ours, theirs = pair(name)
    batch = rows(LENGTHS[given])
    logits, expected = ours.head(ours(batch)), separate_logits(theirs, batch.input_ids, LENGTHS[given])
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = dict(theirs.named_parameters())
    worst = {n: distance(p.grad, gradients[n].grad) for n, p in ours.named_parameters()}
    record("qwen", name, given, distance(logits, expected), max(worst.values()))
    assert distance(logits, expected) < TOLERANCE
    assert set(worst) == set(gradients)
    assert max(worst.values()) < TOLERANCE, max(worst.items(), key=lambda item: item[1])


@pytest.mark.parametrize("name", ["2.5, window 7 from block 1", "3, window 5", "2.5, YaRN", "3, linear scaling"])
def test_windows_and_scalings_matter_in_these_tests(
    name: str, pair: Callable[..., Any], distance: Callable[..., float]
) -> None:
    ours, _ = pair(name)
    without = {"window": None, "window_from": 0, "rope_scaling": RopeScaling()}
    plain = Qwen(ours.config.model_copy(update=without))
    plain.load_state_dict(ours.state_dict())
    assert distance(plain(rows([40])), ours(rows([40]))) > 1e-3


@pytest.mark.parametrize("name", ["2.5, tied", "2.5, window 7 from block 1", "3, untied"])
def test_later_tokens_never_change_earlier_outputs(name: str, pair: Callable[..., Any]) -> None:
    ours, _ = pair(name)
    batch = rows([40])
    changed = batch.input_ids.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % 61
    other = Batch(changed, batch.labels, batch.positions, batch.document_ids).with_index()
    assert torch.equal(ours(batch)[:, :25], ours(other)[:, :25])


@pytest.mark.parametrize("name", ["2.5, tied", "2.5, window 7 from block 1", "3, untied"])
def test_documents_in_one_row_never_see_each_other(name: str, pair: Callable[..., Any]) -> None:
    """Changing one document leaves the others bit for bit."""
    ours, _ = pair(name)
    batch = rows([9, 20, 11])
    changed = batch.input_ids.clone()
    changed[:, 9:29] = (changed[:, 9:29] + 5) % 61
    packed, other = ours(batch), ours(Batch(changed, changed, batch.positions, batch.document_ids).with_index())
    assert torch.equal(packed[:, :9], other[:, :9])
    assert torch.equal(packed[:, 29:], other[:, 29:])
    assert not torch.equal(packed[:, 9:29], other[:, 9:29])


@pytest.mark.parametrize("name", ["2.5, YaRN", "2.5, window 7 from block 1", "3, untied", "3, window 5"])
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


@pytest.mark.parametrize("name", ["2.5, tied", "3, untied"])
def test_bf16_stays_near_fp32(name: str, pair: Callable[..., Any], distance: Callable[..., float]) -> None:
    """bf16 keeps 8 bits: 4e-3 a rounding, and three layers of them."""
    ours, _ = pair(name)
    exact = ours(rows([40]))
    assert distance(ours.bfloat16()(rows([40])).float(), exact) < 5e-2
