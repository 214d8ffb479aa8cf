"""What llama.cpp has no key for is refused by name, and what it has is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

sys.path.insert(0, str(Path(__file__).parent))

from models import CONFIGS, SHAPE

from mt_core.errors import UsageError
from mt_tools.convert.gguf.architectures import (
    architecture_of,
    frequency_factors,
    model_keys,
    scaling_keys,
    yarn_attention,
)

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}


def config(name: str, **more: Any) -> dict[str, Any]:
    kind, own = CONFIGS[name]
    return dict(kind(**{**SHAPE, **own, **more}).to_dict())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_transformers_has_a_name_and_its_numbers(name: str) -> None:
    found = config(name)
    keys = model_keys(found, architecture_of(found))
    assert keys["embedding_length"] == 64
    assert keys["attention.head_count_kv"] == found["num_key_value_heads"]
    assert keys["rope.freq_base"] == (1_000_000.0 if name == "gemma3" else 10_000.0)
    assert scaling_keys(found) == {}
    assert frequency_factors(found) is None


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("mistral", {"sliding_window": 32}, "sliding_window=32"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act=gelu"),
        ("gemma2", {"query_pre_attn_scalar": 100}, "query_pre_attn_scalar=100 with heads of 256"),
        ("gemma2", {"attn_logit_softcapping": None}, "attn_logit_softcapping=null"),
        ("gemma2", {"final_logit_softcapping": None}, "final_logit_softcapping=null"),
        ("gemma2", {"layer_types": ["full_attention"] * 2}, "one sliding and one full"),
        ("gemma3", {"layer_types": ["sliding_attention"] * 6}, "five sliding and one full"),
        ("gemma3", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping=5.0"),
        ("gemma3", {"final_logit_softcapping": 5.0}, "final_logit_softcapping=5.0"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1.0, "factor": 2.0}}, "got 'dynamic'"),
        ("qwen2", {"rope_parameters": YARN | {"beta_fast": 8.0}}, "beta_fast=8.0"),
        ("qwen2", {"rope_parameters": YARN | {"beta_slow": 2}}, "beta_slow=2"),
        ("qwen2", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}, "mscale=1.0; mscale_all_dim=0.7"),
        ("qwen2", {"rope_parameters": YARN | {"truncate": False}}, "truncate=False"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(name: str, change: dict[str, Any], says: str) -> None:
    found = config(name, **change)
    with pytest.raises(UsageError, match=says):
        scaling_keys(found), architecture_of(found)


def test_keys_of_gemma_that_are_left_out_are_as_usual() -> None:
    """As transformers takes them."""
    found = {name: value for name, value in config("gemma2").items() if not name.endswith("_softcapping")}
    keys = architecture_of(found).keys(found)
    assert (keys["attn_logit_softcapping"], keys["final_logit_softcapping"]) == (50.0, 30.0)
    found = {**config("gemma3"), "layer_types": None, "sliding_window_pattern": None}
    assert architecture_of(found).name == "gemma3"


def test_another_model_is_refused_with_those_that_are_written() -> None:
    with pytest.raises(UsageError, match=r"writes llama, mistral, qwen2, qwen3, gemma, .* and not 'gpt2'"):
        architecture_of({"model_type": "gpt2"})


def test_scaled_positions_are_said() -> None:
    written = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }
    assert scaling_keys(config("qwen2", rope_parameters=YARN)) == written
    usual = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": None, "mscale_all_dim": 0, "truncate": True}
    assert scaling_keys(config("qwen2", rope_parameters=YARN | usual)) == written
    linear = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    assert scaling_keys(config("llama", rope_parameters=linear)) == {
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 2.0,
    }


@pytest.mark.parametrize("factor", [1.0, 4.0, 40.0])
@pytest.mark.parametrize("attention", [None, 1.0, 1.3])
def test_llama_cpp_multiplies_by_the_attention_factor_that_transformers_has(
    factor: float, attention: float | None
) -> None:
    """llama.cpp multiplies ``attn_factor`` by YaRN's own (``llama-context.cpp``), which transformers replaces."""
    found = config("qwen3", rope_parameters=YARN | {"factor": factor, "attention_factor": attention})
    kind, own = CONFIGS["qwen3"]
    model = kind(**{**SHAPE, **own, "rope_parameters": YARN | {"factor": factor, "attention_factor": attention}})
    _, want = ROPE_INIT_FUNCTIONS["yarn"](model, "cpu")
    keys = scaling_keys(found)
    assert keys.get("rope.scaling.attn_factor", 1.0) * yarn_attention(factor) == pytest.approx(want, rel=1e-12)
    assert ("rope.scaling.attn_factor" in keys) == (attention is not None)
    assert gguf.Keys.Rope.SCALING_ATTN_FACTOR == "{arch}.rope.scaling.attn_factor"
