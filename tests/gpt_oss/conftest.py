"""gpt-oss of ours beside the same ones of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mt_plugin_gpt_oss.config import GptOssConfig
from mt_plugin_gpt_oss.huggingface import HUGGINGFACE
from mt_plugin_gpt_oss.model import GptOss

Pair = tuple[GptOss, PreTrainedModel]

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
def pair() -> Callable[..., Pair]:
    """``pair(name)``: the same random weights in both; norms are not at 1, biases and sinks not at 0, where a fault would hide."""
    return make_pair


def make_pair(name: str, **more: Any) -> Pair:
    torch.manual_seed(7)
    config = GptOssConfig(**{**SHAPE, **MODELS[name], **more})
    assert HUGGINGFACE.exported is not None
    described = AutoConfig.for_model(**{**HUGGINGFACE.exported(config), "initializer_range": 0.2})
    theirs = AutoModelForCausalLM.from_config(described, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        for key, parameter in theirs.named_parameters():
            if parameter.dim() == 1 or key.endswith("bias"):
                parameter.uniform_(0.5, 1.5)
    ours = GptOss(config)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs
