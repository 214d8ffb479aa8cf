"""What llama.cpp has no key for is refused by name, and what it has is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from models import CONFIGS, SHAPE

from mt_core.errors import UsageError
from mt_tools.convert.gguf.architectures import architecture_of, frequency_factors, model_keys, scaling_keys


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
        ("gemma3", {"layer_types": ["sliding_attention"] * 6}, "five sliding and one full"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1.0, "factor": 2.0}}, "got 'dynamic'"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(name: str, change: dict[str, Any], says: str) -> None:
    found = config(name, **change)
    with pytest.raises(UsageError, match=says):
        scaling_keys(found), architecture_of(found)


def test_another_model_is_refused_with_those_that_are_written() -> None:
    with pytest.raises(UsageError, match=r"writes llama, mistral, qwen2, qwen3, gemma, .* and not 'gpt2'"):
        architecture_of({"model_type": "gpt2"})


def test_scaled_positions_are_said() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    assert scaling_keys(config("qwen2", rope_parameters=yarn)) == {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }
    linear = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    assert scaling_keys(config("llama", rope_parameters=linear)) == {
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 2.0,
    }
