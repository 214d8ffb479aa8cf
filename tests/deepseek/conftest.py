"""DeepSeeks of ours beside the same ones of transformers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.families.forward import MakePair, Pair, draw_vectors, make_models
from transformers import PreTrainedModel

from mt_plugin_deepseek.config import DeepseekConfig
from mt_plugin_deepseek.huggingface import HUGGINGFACE
from mt_plugin_deepseek.model import Deepseek

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
def pair() -> MakePair:
    """``pair(name)``: the same random weights in both; norms are not at 1 and the choice's bias not at 0, where a fault would hide."""
    return make_pair


def make_pair(name: str, **more: Any) -> Pair:
    config = DeepseekConfig(**{**SHAPE, **MODELS[name], **more})
    assert HUGGINGFACE.exported is not None
    return make_models(Deepseek, config, HUGGINGFACE.exported(config), draw=draw_choice, experts_implementation="eager")


def draw_choice(theirs: PreTrainedModel) -> None:
    """Draw norms anew, and the bias for the choice, which is a buffer there."""
    draw_vectors(theirs)
    for name, buffer in theirs.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.uniform_(-0.3, 0.3)
