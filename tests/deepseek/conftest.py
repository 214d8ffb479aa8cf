"""DeepSeeks of ours beside the same ones of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mt_plugin_deepseek.config import DeepseekConfig
from mt_plugin_deepseek.huggingface import HUGGINGFACE
from mt_plugin_deepseek.model import Deepseek

Pair = tuple[Deepseek, PreTrainedModel]

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "max_seq_len": 256,
    "dim": 64,
    "n_layers": 3,
    "n_dense": 1,
    "n_heads": 4,
    "kv_rank": 24,
    "nope_dim": 12,
    "rope_dim": 8,
    "value_dim": 16,
    "ffn_dim": 96,
    "n_experts": 8,
    "top_k": 3,
    "n_shared": 2,
    "expert_dim": 24,
    "routed_scale": 1.7,
    "norm_eps": 1e-3,
    "rope_theta": 2e4,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_seq_len": 16, "mscale": 0.7, "mscale_all_dim": 1.1}
MODELS: dict[str, dict[str, Any]] = {
    "V2 without groups": {"generation": 2, "rope_scaling": YARN},
    "V2": {"generation": 2, "q_rank": 20, "n_groups": 4, "top_groups": 2, "tie_embeddings": True},
    "V3": {
        "generation": 3,
        "q_rank": 20,
        "n_groups": 4,
        "top_groups": 2,
        "normalise": True,
        "rope_scaling": YARN,
    },
}
"""YaRN's original length is shorter than the texts."""


@pytest.fixture(scope="session")
def pair() -> Callable[..., Pair]:
    """``pair(name)``: the same random weights in both; norms are not at 1 and the choice's bias not at 0, where a fault would hide."""
    return make_pair


def make_pair(name: str, **more: Any) -> Pair:
    torch.manual_seed(7)
    config = DeepseekConfig(**{**SHAPE, **MODELS[name], **more})
    assert HUGGINGFACE.exported is not None
    described = AutoConfig.for_model(**{**HUGGINGFACE.exported(config), "initializer_range": 0.2})
    theirs = AutoModelForCausalLM.from_config(described, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
        for key, buffer in theirs.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.uniform_(-0.3, 0.3)
    ours = Deepseek(config)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs
