"""gpt-oss of ours beside the same ones of transformers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.families.forward import MakePair, Pair, make_models
from transformers import PreTrainedModel

from mt_plugin_gpt_oss.config import GptOssConfig
from mt_plugin_gpt_oss.huggingface import HUGGINGFACE
from mt_plugin_gpt_oss.model import GptOss

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "max_seq_len": 256,
    "dim": 64,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 16,
    "n_experts": 6,
    "top_k": 2,
    "ffn_dim": 32,
    "swiglu_alpha": 1.3,
    "swiglu_limit": 0.8,
    "window": 7,
    "norm_eps": 1e-3,
    "rope_theta": 2e4,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_seq_len": 16, "truncate": False}
MODELS: dict[str, dict[str, Any]] = {
    "YaRN": {"rope_scaling": YARN},
    "tied, every third block global": {"tie_embeddings": True, "global_every": 3},
}
"""Windows, YaRN's original length and the clamp are within reach of the texts."""


@pytest.fixture(scope="session")
def pair() -> MakePair:
    """``pair(name)``: the same random weights in both; norms are not at 1, biases and sinks not at 0, where a fault would hide."""
    return make_pair


def make_pair(name: str, **more: Any) -> Pair:
    config = GptOssConfig(**{**SHAPE, **MODELS[name], **more})
    assert HUGGINGFACE.exported is not None
    return make_models(GptOss, config, HUGGINGFACE.exported(config), draw=draw_biases, experts_implementation="eager")


def draw_biases(theirs: PreTrainedModel) -> None:
    """Draw norms, sinks and biases anew; experts have a matrix of biases."""
    for name, parameter in theirs.named_parameters():
        if parameter.dim() == 1 or name.endswith("bias"):
            parameter.uniform_(0.5, 1.5)
