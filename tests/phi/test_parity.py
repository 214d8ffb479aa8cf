"""Phi-3 and 4 beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families.forward import MakePair, cut, rows
from tests.families.parity import SHAPE, BaseParity
from transformers import AutoConfig

from mt_core.errors import UsageError
from mt_core.nn import KVCache
from mt_core.weights import CONFIG, read_config
from mt_plugin_phi.config import PhiConfig
from mt_plugin_phi.huggingface import ARCHITECTURES, HUGGINGFACE
from mt_plugin_phi.model import Phi
from mt_plugin_phi.variants import VARIANTS

_PLAIN: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "embd_pdrop": 0.0,
    "hidden_act": "silu",
    "model_type": "phi3",
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
LONGROPE: dict[str, Any] = {
    "type": "longrope",
    "factor": 16.0,
    "original_max_seq_len": 16,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0],
}
"""max_seq_len is 256, and texts are shorter and longer than 16."""
PARTIAL = {key: value[:6] if isinstance(value, list) else value for key, value in LONGROPE.items()}


class TestPhi(BaseParity):
    model, config, format, architectures, variants = Phi, PhiConfig, HUGGINGFACE, ARCHITECTURES, VARIANTS
    cases = {
        "window 7": {"window": 7},
        "no window": {},
        "tied": {"tie_embeddings": True},
        "a part turns": {"rotary_part": 0.75},
        "LongRoPE": {"rope_scaling": LONGROPE},
        "LongRoPE of a part": {"rope_scaling": {**PARTIAL, "attention_factor": 1.3}, "rotary_part": 0.75},
    }
    published = {"3-mini": 3_821_079_552, "3-medium": 13_960_238_080, "4-14b": 14_659_507_200}
    configs = {
        "3-mini": {
            **_PLAIN,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "original_max_position_embeddings": 4096,
            "rope_theta": 10000.0,
            "sliding_window": 2047,
            "vocab_size": 32064,
        },
        "4-14b": {
            **_PLAIN,
            "hidden_size": 5120,
            "intermediate_size": 17920,
            "max_position_embeddings": 16384,
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "num_key_value_heads": 10,
            "original_max_position_embeddings": 16384,
            "rope_theta": 250000,
            "sliding_window": None,
            "vocab_size": 100352,
        },
    }
    refused = {
        "another model": ({"architectures": ["PhiForCausalLM"]}, "PhiForCausalLM; this family reads Phi3ForCausalLM"),
        "a mixture": ({"architectures": ["PhimoeForCausalLM"]}, "PhimoeForCausalLM.*mixture of experts"),
        "dropout": ({"resid_pdrop": 0.1}, "resid_pdrop=0.1"),
        "an old name": ({"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}}, "scaling 'su'"),
    }
    impossible = {
        "factors for other heads": ({"rope_scaling": PARTIAL}, "short_factor has 6 ratios, and 16 channels"),
        "no factors": (
            {"rope_scaling": {"type": "longrope", "factor": 2.0, "original_max_seq_len": 16}},
            "needs short_factor",
        ),
        "another scaling": (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "'linear' is not this family's; use none or longrope",
        ),
        "an odd part": ({"rotary_part": 0.2}, "rotary_part=0.2 of 16 channels is 3"),
    }

    def test_a_file_without_an_original_length_has_that_of_transformers(self, tmp_path: Path) -> None:
        """Beside the rotary parameters, whose own it overrides there."""
        original = {**LONGROPE, "original_max_seq_len": 4096}
        content = self.exported(PhiConfig(**{**SHAPE, "max_seq_len": 8192, "rope_scaling": original}))
        del content["original_max_position_embeddings"]
        content["rope_parameters"]["original_max_position_embeddings"] = 2048
        del content["rope_scaling"]
        (tmp_path / CONFIG).write_text(json.dumps(content))
        theirs = AutoConfig.from_pretrained(tmp_path).rope_parameters["original_max_position_embeddings"]
        found = read_config(tmp_path / CONFIG, ARCHITECTURES)["rope_scaling"]["original_max_seq_len"]
        assert found == theirs == 4096

    def test_a_text_that_grows_into_the_other_factors_is_refused(self, pair: MakePair) -> None:
        """Transformers computes the whole text anew there; here what is in the cache would be wrong."""
        ours, _ = pair("LongRoPE")
        whole, cache = rows([40]), KVCache()
        with torch.inference_mode():
            ours(cut(whole, 0, 12), cache)
            with pytest.raises(UsageError, match="grew beyond 16 tokens"):
                ours(cut(whole, 12, 20), cache)
