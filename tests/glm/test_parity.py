"""GLM-4 (0414) beside transformers."""

from __future__ import annotations

from typing import Any

from tests.families.parity import REMOVED, YARN, BaseParity

from mt_plugin_glm.config import GlmConfig
from mt_plugin_glm.huggingface import ARCHITECTURES, HUGGINGFACE
from mt_plugin_glm.model import Glm
from mt_plugin_glm.variants import VARIANTS

_SHARED: dict[str, Any] = {
    "architectures": ["Glm4ForCausalLM"],
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "model_type": "glm4",
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 151552,
}


class TestGlm(BaseParity):
    model, config, format, architectures, variants = Glm, GlmConfig, HUGGINGFACE, ARCHITECTURES, VARIANTS
    cases = {
        "biases": {"attention_bias": True},
        "no biases": {},
        "tied": {"tie_embeddings": True},
        "a quarter turns": {"rotary_part": 0.25},
        "whole heads turn": {"rotary_part": 1.0, "head_dim": 24},
        "YaRN": {"rope_scaling": YARN},
    }
    published = {"4-9b": 9_400_279_040}
    configs = {
        "4-9b": {
            **_SHARED,
            "attention_bias": True,
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
        },
        "4-32b": {
            **_SHARED,
            "attention_bias": False,
            "hidden_size": 6144,
            "intermediate_size": 23040,
            "num_attention_heads": 48,
            "num_hidden_layers": 61,
        },
    }
    of_others = {
        "a part of each head, in the old key and beside it": {
            "partial_rotary_factor": 0.25,
            "rope_parameters": REMOVED,
            "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.75},
        }
    }
    refused = {
        "the generation before": ({"architectures": ["GlmForCausalLM"]}, "GlmForCausalLM; this family reads Glm4"),
        "a mixture": ({"architectures": ["Glm4MoeForCausalLM"]}, "Glm4MoeForCausalLM.*mixture of experts"),
        "gelu": ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
    }
    impossible = {"an odd part": ({"rotary_part": 0.2}, "rotary_part=0.2 of 16 channels is 3")}
