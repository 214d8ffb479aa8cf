"""Qwens of ours beside the same ones of transformers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.families.forward import MakePair, Pair, make_models

from mt_plugin_qwen.config import QwenConfig
from mt_plugin_qwen.huggingface import HUGGINGFACE
from mt_plugin_qwen.model import Qwen

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "max_seq_len": 256,
    "dim": 64,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 16,
    "ffn_dim": 96,
    "norm_eps": 1e-3,
    "rope_theta": 2e4,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_seq_len": 16}
EXPERTS: dict[str, Any] = {"generation": 3, "n_experts": 6, "top_k": 2, "expert_dim": 24}
MODELS: dict[str, dict[str, Any]] = {
    "2.5, tied": {"generation": 2, "tie_embeddings": True},
    "2.5, untied": {"generation": 2},
    "2.5, one key head": {"generation": 2, "n_kv_heads": 1},
    "2.5, YaRN": {"generation": 2, "rope_scaling": YARN},
    "2.5, window 7 from block 1": {"generation": 2, "window": 7, "window_from": 1},
    "3, tied": {"generation": 3, "tie_embeddings": True},
    "3, untied": {"generation": 3},
    "3, heads wider than the model": {"generation": 3, "head_dim": 48},
    "3, YaRN": {"generation": 3, "rope_scaling": {**YARN, "beta_fast": 8.0, "attention_factor": 1.3}},
    "3, linear scaling": {"generation": 3, "rope_scaling": {"type": "linear", "factor": 8.0}},
    "3, Llama 3 scaling": {
        "generation": 3,
        "rope_scaling": {"type": "llama3", "factor": 8.0, "original_max_seq_len": 16},
    },
    "3, window 5": {"generation": 3, "window": 5},
    "3, experts": {**EXPERTS, "normalise": True},
    "3, experts in some blocks, window 5": {**EXPERTS, "expert_step": 2, "normalise": False, "window": 5},
}
"""Generation and feature. YaRN's original length and the windows are shorter than the texts."""


@pytest.fixture(scope="session")
def pair() -> MakePair:
    """``pair(name)``: the same random weights in both; norms are not at 1 and biases not at 0, where a fault would hide."""
    return make_pair


def make_pair(name: str, **more: Any) -> Pair:
    config = QwenConfig(**{**SHAPE, **MODELS[name], **more})
    return make_models(Qwen, config, HUGGINGFACE.exported(config))
