"""Named sizes as data: ``config.json`` of https://huggingface.co/openai/gpt-oss-20b and https://huggingface.co/openai/gpt-oss-120b."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PUBLISHED: Mapping[str, Any] = {
    "vocab_size": 201_088,
    "max_seq_len": 131_072,
    "dim": 2880,
    "n_heads": 64,
    "n_kv_heads": 8,
    "head_dim": 64,
    "top_k": 4,
    "ffn_dim": 2880,
    "window": 128,
    "norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "rope_scaling": {"type": "yarn", "factor": 32.0, "original_max_seq_len": 4096, "truncate": False},
}
"""Values that both published sizes share."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "vocab_size": 272,
        "max_seq_len": 512,
        "dim": 96,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 32,
        "n_experts": 8,
        "top_k": 2,
        "ffn_dim": 64,
        "window": 32,
        "tie_embeddings": True,
    },
    "20b": {**PUBLISHED, "n_layers": 24, "n_experts": 32},
    "120b": {**PUBLISHED, "n_layers": 36, "n_experts": 128},
}
"""The first is ours, for tests and first steps."""

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"tiny": {"optimizer.lr": 3e-3}}
"""Size → defaults of a run."""
