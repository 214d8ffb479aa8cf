"""Llama equals transformers' Llama: logits, and the gradient of every parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig as TransformersConfig
from transformers import LlamaForCausalLM

from mt_core import Sample
from mt_core.nn import Batch, KVCache, TokenObjective
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.huggingface import HUGGINGFACE
from mt_plugin_llama.model import Llama

TOLERANCE = 1e-5
"""Relative, per tensor. fp32 has 6e-8; sums of a hundred terms in another order make some 1e-6."""

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "max_seq_len": 256,
    "dim": 64,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 4,
    "ffn_dim": 96,
    "norm_eps": 1e-5,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped queries": {"n_kv_heads": 2},
    "one key head": {"n_kv_heads": 1},
    "tied": {"tie_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 32},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic, short": {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_seq_len": 256}},
    "dynamic, long": {
        "max_seq_len": 16,
        "rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_seq_len": 16},
    },
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_seq_len": 32}},
    "yarn, tuned": {
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_seq_len": 64,
            "attention_factor": 1.3,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        }
    },
    "llama3": {"rope_theta": 500_000.0, "rope_scaling": {"type": "llama3", "factor": 8.0, "original_max_seq_len": 64}},
}


def pair(name: str) -> tuple[Llama, LlamaForCausalLM]:
    """The same random weights in both; norms are not at 1, where a fault would hide."""
    torch.manual_seed(7)
    config = LlamaConfig(**{**SHAPE, **VARIANTS[name]})
    theirs = LlamaForCausalLM(TransformersConfig.from_dict({**HUGGINGFACE.exported(config), "initializer_range": 0.2}))
    ours = Llama(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def rows(length: int = 40) -> Batch:
    ids = torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(length).expand(2, -1)
    return Batch(ids, torch.zeros_like(ids), positions, torch.zeros_like(ids)).with_index()


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_gradients_equal_transformers_llama_within_1e_5(name: str) -> None:
    ours, theirs = pair(name)
    batch = rows()
    logits = ours.head(ours(batch))
    expected = theirs(batch.input_ids).logits
    assert distance(logits, expected) < TOLERANCE
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = dict(theirs.named_parameters())
    worst = {n: distance(p.grad, gradients[n].grad) for n, p in ours.named_parameters()}
    assert set(worst) == set(gradients)
    assert max(worst.values()) < TOLERANCE, max(worst.items(), key=lambda item: item[1])


def test_later_tokens_never_change_earlier_outputs() -> None:
    ours, _ = pair("grouped queries")
    batch = rows()
    changed = batch.input_ids.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % 61
    other = Batch(changed, batch.labels, batch.positions, batch.document_ids).with_index()
    assert torch.equal(ours(batch)[:, :25], ours(other)[:, :25])


@pytest.mark.parametrize("name", ["grouped queries", "llama3"])
def test_documents_in_one_row_never_see_each_other(name: str) -> None:
    """Changing one document leaves the others bit for bit; each equals itself alone in a row."""
    ours, _ = pair(name)
    lengths = [9, 20, 11]
    ids = rows().input_ids[:1]
    document_ids = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = ours(Batch(ids, ids, positions, document_ids).with_index())
    changed = ids.clone()
    changed[:, 9:29] = (changed[:, 9:29] + 5) % 61
    other = ours(Batch(changed, ids, positions, document_ids).with_index())
    assert torch.equal(packed[:, :9], other[:, :9])
    assert torch.equal(packed[:, 29:], other[:, 29:])
    assert not torch.equal(packed[:, 9:29], other[:, 9:29])
    start = 0
    for length in lengths:
        alone = ids[:, start : start + length]
        zeros = torch.zeros_like(alone)
        single = ours(Batch(alone, zeros, torch.arange(length)[None], zeros).with_index())
        assert distance(packed[:, start : start + length], single) < TOLERANCE
        start += length


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("rows_of", [[(33,), (12, 40)], [(33,)], [(15,), (16, 17, 20)]])
def test_dynamic_scaling_of_a_document_is_that_of_the_document_alone(
    rows_of: list[tuple[int, ...]], padding: int
) -> None:
    """However it is packed and padded: transformers, which stretches a whole batch, sees one document at a time, each anew."""
    ours, theirs = pair("dynamic, long")
    draw = torch.Generator().manual_seed(5)
    rows = [[torch.randint(0, 61, (n,), generator=draw).tolist() for n in lengths] for lengths in rows_of]
    samples = [[Sample(ids, [True] * len(ids), "row") for ids in row] for row in rows]
    longest = max(sum(lengths) for lengths in rows_of)
    hidden = ours(TokenObjective().collate(samples, length=longest + padding).with_index())
    for number, row in enumerate(rows):
        start = 0
        for ids in row:
            fresh = LlamaForCausalLM(theirs.config)
            fresh.load_state_dict(theirs.state_dict())
            expected = fresh(torch.tensor([ids])).logits
            assert distance(ours.head(hidden[number : number + 1, start : start + len(ids)]), expected) < TOLERANCE
            start += len(ids)


def test_dynamic_scaling_with_a_cache_is_that_of_transformers() -> None:
    """Each new token has the angles of the text so far, and cached keys keep theirs; from within the original length to beyond."""
    ours, theirs = pair("dynamic, long")
    prompt, cache = [5, 9, 31, 7, 20, 2, 44, 60, 3, 11, 12], KVCache()
    past, given = None, torch.tensor([prompt])
    for start in [0, *range(len(prompt), len(prompt) + 20)]:
        places = torch.arange(start, start + given.shape[1])[None]
        zeros = torch.zeros_like(given)
        logits = ours.head(ours(Batch(given, zeros, places, zeros), cache)[:, -1])
        answer = theirs(given, past_key_values=past, use_cache=True)
        assert distance(logits, answer.logits[:, -1]) < TOLERANCE
        past, given = answer.past_key_values, logits.argmax(-1, keepdim=True)


@pytest.mark.parametrize("name", ["grouped queries", "yarn"])
def test_a_cache_gives_what_the_whole_forward_gives(name: str) -> None:
    ours, _ = pair(name)
    batch, cache, pieces = rows(), KVCache(), []
    for start, end in [(0, 12), (12, 13), (13, 20), (20, 40)]:
        cut = [x[:, start:end] for x in (batch.input_ids, batch.labels, batch.positions, batch.document_ids)]
        pieces.append(ours(Batch(*cut), cache))
    assert distance(torch.cat(pieces, 1), ours(batch)) < TOLERANCE
    assert cache.length == 40


def test_bf16_stays_near_fp32() -> None:
    """bf16 keeps 8 bits: 4e-3 a rounding, and three layers of them."""
    ours, _ = pair("llama3")
    exact = ours(rows())
    assert distance(ours.bfloat16()(rows()).float(), exact) < 3e-2
