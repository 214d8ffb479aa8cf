"""SmolLM3 beside transformers."""

from __future__ import annotations

from tests.families.parity import YARN, BaseParity

from mt_plugin_smollm.config import SmolLMConfig
from mt_plugin_smollm.huggingface import ARCHITECTURES, HUGGINGFACE
from mt_plugin_smollm.model import SmolLM
from mt_plugin_smollm.variants import VARIANTS

WINDOW = {"use_sliding_window": True, "sliding_window": 8}


class TestSmolLM(BaseParity):
    model, config, format, architectures, variants = SmolLM, SmolLMConfig, HUGGINGFACE, ARCHITECTURES, VARIANTS
    cases = {
        "each second block without": {"no_rope_every": 2},
        "each third block without": {"no_rope_every": 3},
        "all blocks with": {"no_rope_every": None},
        "untied": {"no_rope_every": 2, "tie_embeddings": False},
        "YaRN": {"no_rope_every": 2, "rope_scaling": YARN},
        "windows where there are no positions": {
            "no_rope_every": 2,
            "window": 7,
            "window_pattern": ("full", "window"),
        },
        "windows everywhere": {"no_rope_every": 2, "window": 7},
    }
    of_others = {
        "windows in blocks without positions": {**WINDOW, "layer_types": None},
        "windows of which no block has one": {**WINDOW, "layer_types": None, "no_rope_layers": [1, 1, 1]},
        "windows as the file says": {
            **WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        },
        "a window that is not used": {**WINDOW, "use_sliding_window": False},
        "a use without a window": {"use_sliding_window": True},
    }
    published = {"3b": 3_075_098_624}
    configs = {
        "3b": {
            "architectures": ["SmolLM3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "layer_types": ["full_attention"] * 36,
            "max_position_embeddings": 65536,
            "max_window_layers": 28,
            "mlp_bias": False,
            "model_type": "smollm3",
            "no_rope_layer_interval": 4,
            "no_rope_layers": [1, 1, 1, 0] * 9,
            "num_attention_heads": 16,
            "num_hidden_layers": 36,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 5000000.0,
            "sliding_window": None,
            "use_sliding_window": False,
            "vocab_size": 128256,
        }
    }
    read_otherwise = frozenset({"no_rope_layers"})  # the interval is longer than the blocks are many
    refused = {
        "another model": ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM; this family reads SmolLM3"),
        "irregular blocks": ({"no_rope_layers": [0, 1, 1]}, r"no_rope_layers=\[0, 1, 1\]; supported"),
        "windows of one kernel": (
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 8},
            "with use_sliding_window=False, with which transformers masks blocks by kernel",
        ),
        "a window of no length": (
            {"layer_types": ["sliding_attention"] * 3, "use_sliding_window": True},
            "without sliding_window; set it",
        ),
        "biases": ({"attention_bias": True}, "attention_bias=True"),
    }
    impossible = {"three key heads": ({"n_kv_heads": 3}, "not a multiple of n_kv_heads=3")}
