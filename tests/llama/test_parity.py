"""Llama equals transformers' Llama: logits, and the gradient of every parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.families.forward import TOLERANCE, BaseMasks, Distance, MakePair, Pair, make_models
from transformers import LlamaForCausalLM

from mt_core import Sample
from mt_core.nn import Batch, KVCache, TokenObjective
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.huggingface import HUGGINGFACE
from mt_plugin_llama.model import Llama

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


@pytest.fixture
def pair() -> MakePair:
    """``pair(name)``: the same random weights in both; norms are not at 1, where a fault would hide."""

    def make(name: str) -> Pair:
        config = LlamaConfig(**{**SHAPE, **VARIANTS[name]})
        return make_models(Llama, config, HUGGINGFACE.exported(config))

    return make


class TestLlama(BaseMasks):
    cases, texts = VARIANTS, {"one document": [40]}
    cached_cases = ["grouped queries", "yarn"]
    masked_cases = ["grouped queries", "llama3"]
    rounded_cases = ["llama3"]


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("rows_of", [[(33,), (12, 40)], [(33,)], [(15,), (16, 17, 20)]])
def test_dynamic_scaling_of_a_document_is_that_of_the_document_alone(
    rows_of: list[tuple[int, ...]], padding: int, pair: MakePair, distance: Distance
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


def test_dynamic_scaling_with_a_cache_is_that_of_transformers(pair: MakePair, distance: Distance) -> None:
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
