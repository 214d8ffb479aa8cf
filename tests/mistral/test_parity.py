"""Mistral, Ministral and Mixtral beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.families.parity import YARN, BaseParity

from mt_core.weights import CONFIG, read_config
from mt_plugin_mistral.config import MistralConfig
from mt_plugin_mistral.huggingface import ARCHITECTURES, HUGGINGFACE
from mt_plugin_mistral.model import Mistral
from mt_plugin_mistral.variants import VARIANTS

_PLAIN: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}


class TestMistral(BaseParity):
    model, config, format, architectures, variants = Mistral, MistralConfig, HUGGINGFACE, ARCHITECTURES, VARIANTS
    cases = {
        "window 7": {"window": 7},
        "no window": {},
        "tied": {"tie_embeddings": True},
        "heads wider than the model": {"head_dim": 24, "window": 7},
        "YaRN": {"rope_scaling": YARN},
        "experts": {"n_experts": 4, "window": 7},
        "three experts of a token": {"n_experts": 4, "top_k": 3},
        "every third block sees all": {"window": 5, "window_pattern": ("full", "window", "window")},
    }
    published = {
        "7b-v0.1": 7_241_732_096,
        "7b": 7_248_023_552,
        "nemo-12b": 12_247_782_400,
        "small-22b": 22_247_282_688,
        "small-24b": 23_572_403_200,
        "large-123b": 122_610_069_504,
        "8x7b": 46_702_792_704,
        "8x22b": 140_620_634_112,
        "ministral-8b": 8_019_808_256,
    }
    configs = {
        "7b-v0.1": _PLAIN,
        "7b": {**_PLAIN, "rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768},
    }
    of_others = {
        "blocks of two kinds": {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
        "blocks of two kinds, irregular": {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        "blocks without a window, and one": {"layer_types": ["full_attention"] * 3},
        "YaRN with null for what is true where it is left out": {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "truncate": None,
            }
        },
    }
    refused = {
        "another model": (
            {"architectures": ["LlamaForCausalLM"]},
            "LlamaForCausalLM; this family reads MistralForCausalLM and Min",
        ),
        "jitter": (
            {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "router_jitter_noise": 0.1},
            "router_jitter_noise=0.1",
        ),
        "gelu": ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        "blocks of another kind": ({"layer_types": ["chunked_attention"] * 3}, "layer_types chunked_attention"),
        "dynamic scaling": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'; this family reads"),
    }
    impossible = {
        "a pattern without a window": ({"window": None, "window_pattern": ("full", "window")}, "without window"),
        "a pattern in a mixture": (
            {"n_experts": 4, "window_pattern": ("full", "window")},
            "window_pattern in a mixture",
        ),
        "more experts than there are": ({"n_experts": 4, "top_k": 5}, "top_k=5 of n_experts=4"),
        "experts of a token without experts": ({"top_k": 4}, "top_k=4 is for a mixture"),
        "a balance without experts": ({"balance": 0.1}, "balance=0.1 is for a mixture"),
        "three key heads": ({"n_kv_heads": 3}, "not a multiple of n_kv_heads=3"),
    }

    def test_a_balance_loss_is_read_where_transformers_uses_one(self, tmp_path: Path) -> None:
        """Its coefficient there is for the mean over choices, of which a token has ``top_k``."""
        config = self.config(**{**self.shape, "n_experts": 4, "balance": 0.04})
        written = self.exported(config)
        assert (written["output_router_logits"], written["router_aux_loss_coef"]) == (True, 0.02)
        for used, balance in ((True, 0.04), (False, 0.0)):
            (tmp_path / CONFIG).write_text(json.dumps({**written, "output_router_logits": used}))
            assert read_config(tmp_path / CONFIG, self.architectures)["balance"] == balance
