"""Named sizes as data: ``config.json`` of https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite, DeepSeek-V2 and DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

YARN: Mapping[str, Any] = {
    "type": "yarn",
    "factor": 40.0,
    "original_max_seq_len": 4096,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
PUBLISHED: Mapping[str, Any] = {
    "max_seq_len": 163_840,
    "kv_rank": 512,
    "nope_dim": 128,
    "rope_dim": 64,
    "value_dim": 128,
    "norm_eps": 1e-6,
    "rope_theta": 10_000.0,
}
"""Values that all published sizes share."""

TINY: Mapping[str, Any] = {
    "vocab_size": 272,
    "max_seq_len": 512,
    "dim": 96,
    "n_layers": 4,
    "n_dense": 1,
    "n_heads": 4,
    "kv_rank": 48,
    "nope_dim": 24,
    "rope_dim": 16,
    "value_dim": 24,
    "ffn_dim": 256,
    "n_experts": 8,
    "top_k": 2,
    "n_shared": 1,
    "expert_dim": 64,
    "tie_embeddings": True,
}
"""Ours, for tests and first steps."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "v2-tiny": {"generation": 2, **TINY},
    "tiny": {
        "generation": 3,
        **TINY,
        "q_rank": 64,
        "n_groups": 4,
        "top_groups": 2,
        "normalise": True,
        "routed_scale": 2.5,
    },
    "v2-lite": {
        "generation": 2,
        **PUBLISHED,
        "vocab_size": 102_400,
        "dim": 2048,
        "n_layers": 27,
        "n_dense": 1,
        "n_heads": 16,
        "ffn_dim": 10_944,
        "n_experts": 64,
        "top_k": 6,
        "n_shared": 2,
        "expert_dim": 1408,
        "rope_scaling": YARN,
    },
    "v2": {
        "generation": 2,
        **PUBLISHED,
        "vocab_size": 102_400,
        "dim": 5120,
        "n_layers": 60,
        "n_dense": 1,
        "n_heads": 128,
        "q_rank": 1536,
        "ffn_dim": 12_288,
        "n_experts": 160,
        "top_k": 6,
        "n_shared": 2,
        "expert_dim": 1536,
        "n_groups": 8,
        "top_groups": 3,
        "routed_scale": 16.0,
        "rope_scaling": YARN,
    },
    "v3": {
        "generation": 3,
        **PUBLISHED,
        "vocab_size": 129_280,
        "dim": 7168,
        "n_layers": 61,
        "n_dense": 3,
        "n_heads": 128,
        "q_rank": 1536,
        "ffn_dim": 18_432,
        "n_experts": 256,
        "top_k": 8,
        "n_shared": 1,
        "expert_dim": 2048,
        "n_groups": 8,
        "top_groups": 4,
        "normalise": True,
        "routed_scale": 2.5,
        "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
}
"""Size → config values."""

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "v2-tiny": {"optimizer.lr": 3e-3},
    "tiny": {"optimizer.lr": 3e-3},
}
"""Size → defaults of a run."""
