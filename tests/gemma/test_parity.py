"""Gemma equals transformers' Gemma, Gemma 2 and Gemma 3: logits, and the gradient of every parameter.

``MT_PARITY_TABLE=FILE pytest tests/gemma tests/qwen`` writes down how far they are apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from mt_core.nn import Batch, KVCache
from mt_plugin_gemma.model import Embedding, Gemma, round_to

TOLERANCE = 1e-5
"""Relative, per tensor. fp32 has 6e-8; sums of a hundred terms in another order make some 1e-6."""
MODELS = [
    "1, plain",
    "1, one key head",
    "2, window 7",
    "2, window as long as the text",
    "2, no soft-cap",
    "2, global blocks only",
    "3, window 5",
    "3, window 1",
    "3, linear scaling",
    "3, query scalar",
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
    record("gemma", name, given, distance(logits, expected), max(worst.values()))
    assert distance(logits, expected) < TOLERANCE
    assert set(worst) == set(gradients)
    assert max(worst.values()) < TOLERANCE, max(worst.items(), key=lambda item: item[1])


@pytest.mark.parametrize("name", ["2, window 7", "3, window 5"])
def test_the_window_and_the_soft_cap_matter_in_these_tests(
    name: str, pair: Callable[..., Any], distance: Callable[..., float]
) -> None:
    ours, _ = pair(name)
    wide = Gemma(ours.config.model_copy(update={"window": 40}))
    wide.load_state_dict(ours.state_dict())
    batch = rows([40])
    assert distance(wide(batch), ours(batch)) > 1e-3
    if ours.config.attention_softcap is not None:
        bare = Gemma(ours.config.model_copy(update={"attention_softcap": 500.0}))
        bare.load_state_dict(ours.state_dict())
        assert distance(bare(batch), ours(batch)) > 1e-3


@pytest.mark.parametrize("name", ["1, plain", "2, window 7", "3, window 5"])
def test_later_tokens_never_change_earlier_outputs(name: str, pair: Callable[..., Any]) -> None:
    ours, _ = pair(name)
    batch = rows([40])
    changed = batch.input_ids.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % 61
    other = Batch(changed, batch.labels, batch.positions, batch.document_ids).with_index()
    assert torch.equal(ours(batch)[:, :25], ours(other)[:, :25])


@pytest.mark.parametrize("name", ["1, plain", "2, window 7", "3, window 5"])
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


@pytest.mark.parametrize("name", ["1, plain", "2, window 7", "3, window 5", "3, window 1"])
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


@pytest.mark.parametrize("name", ["1, plain", "2, window 7", "3, window 5"])
def test_bf16_stays_near_fp32(name: str, pair: Callable[..., Any], distance: Callable[..., float]) -> None:
    """bf16 keeps 8 bits: 4e-3 a rounding, and four layers of them."""
    ours, _ = pair(name)
    exact = ours(rows([40]))
    assert distance(ours.bfloat16()(rows([40])).float(), exact) < 5e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [640, 2048, 3072, 3840, 5376])
def test_embeddings_are_scaled_by_the_rounded_square_root_of_their_width(width: int, dtype: torch.dtype) -> None:
    assert round_to(width**0.5, dtype) == torch.tensor(width**0.5).to(dtype).item()
    theirs = Gemma3TextScaledWordEmbedding(61, width, 0, embed_scale=width**0.5).to(dtype)
    ours = Embedding(61, width).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    ids = torch.arange(61)[None]
    assert torch.equal(ours(ids), theirs(ids))
