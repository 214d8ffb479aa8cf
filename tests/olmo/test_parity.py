"""OLMo 2 and 3 beside transformers."""

from __future__ import annotations

from typing import Any

from tests.families.parity import REMOVED, YARN, BaseParity

from mt_plugin_olmo.config import OlmoConfig
from mt_plugin_olmo.huggingface import ARCHITECTURES, HUGGINGFACE
from mt_plugin_olmo.model import Olmo
from mt_plugin_olmo.variants import VARIANTS

_7B: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-06,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
}
_THIRD = {"generation": 3, "window": 5, "window_pattern": ("window", "window", "full")}

_LATER: dict[str, Any] = {
    "architectures": ["Olmo3ForCausalLM"],
    "model_type": "olmo3",
    "sliding_window": 5,
    "rope_parameters": REMOVED,
}
_LINEAR, _BASE = {"rope_type": "linear", "factor": 4.0}, {"rope_type": "default", "rope_theta": 2e3}


class TestOlmo(BaseParity):
    model, config, format, architectures, variants = Olmo, OlmoConfig, HUGGINGFACE, ARCHITECTURES, VARIANTS
    cases = {
        "2": {"generation": 2},
        "2, tied, YaRN": {"generation": 2, "tie_embeddings": True, "rope_scaling": YARN},
        "3": _THIRD,
        "3, YaRN where there is no window": {**_THIRD, "rope_scaling": {**YARN, "attention_factor": 1.3}},
        "3, windows everywhere": {"generation": 3, "window": 7},
    }
    published = {
        "2-1b": 1_484_916_736,
        "2-7b": 7_298_617_344,
        "2-13b": 13_716_198_400,
        "2-32b": 32_234_279_936,
        "3-7b": 7_298_011_136,
        "3-32b": 32_233_522_176,
    }
    configs = {
        "2-7b": {
            **_7B,
            "architectures": ["Olmo2ForCausalLM"],
            "max_position_embeddings": 4096,
            "model_type": "olmo2",
            "rope_scaling": None,
            "vocab_size": 100352,
        },
        "3-7b": {
            **_7B,
            "architectures": ["Olmo3ForCausalLM"],
            "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
            "max_position_embeddings": 65536,
            "model_type": "olmo3",
            "rope_scaling": {
                "attention_factor": 1.2079441541679836,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 8.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "yarn",
            },
            "sliding_window": 4096,
            "vocab_size": 100278,
        },
    }
    of_others = {
        "3, stretched as release 4 writes it": {**_LATER, "rope_theta": REMOVED, "rope_scaling": _LINEAR},
        "3, stretched beside parameters by kind": {
            **_LATER,
            "rope_theta": REMOVED,
            "rope_scaling": _LINEAR,
            "rope_parameters": {"full_attention": _BASE, "sliding_attention": _BASE},
        },
    }
    refused = {
        "the first generation": ({"architectures": ["OlmoForCausalLM"]}, "OlmoForCausalLM; this family reads Olmo2"),
        "a mixture": ({"architectures": ["OlmoeForCausalLM"]}, "OlmoeForCausalLM.*mixture of experts"),
        "biases": ({"attention_bias": True}, "attention_bias=True"),
        "stretched windows": (
            {
                "architectures": ["Olmo3ForCausalLM"],
                "model_type": "olmo3",
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
                },
            },
            "for sliding_attention; supported: default",
        ),
        "a base of blocks without a window alone": (
            {**_LATER, "rope_scaling": None},
            r"rotary base 20000.0 for blocks that see all, and 500000.0 for those with a window",
        ),
        "a base of blocks with a window alone": (
            {**_LATER, "rope_parameters": {"full_attention": _BASE}},
            r"rotary base 2000.0 for blocks that see all, and 500000.0",
        ),
        "parameters that are not by kind of block": (
            {**_LATER, "rope_parameters": _LINEAR},
            "put them under full_attention",
        ),
    }
    impossible = {
        "a window in 2": ({"window": 8}, "window=8 in generation 2"),
        "no window in 3": ({"generation": 3}, "generation 3 without window"),
    }
