"""Named sizes as data: ``config.json`` of https://huggingface.co/Qwen/Qwen2.5-SIZE and https://huggingface.co/Qwen/Qwen3-SIZE.

Those of 2.5 are the base models, whose norm epsilon and length differ from the instructed ones' here and there;
``--model.weights`` takes both from the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SECOND: Mapping[str, Any] = {
    "generation": 2,
    "vocab_size": 151_936,
    "max_seq_len": 131_072,
    "head_dim": 128,
    "norm_eps": 1e-6,
    "rope_theta": 1e6,
}
"""Values that most sizes of Qwen 2.5 share."""

THIRD: Mapping[str, Any] = {
    "generation": 3,
    "vocab_size": 151_936,
    "max_seq_len": 40_960,
    "n_kv_heads": 8,
    "head_dim": 128,
    "norm_eps": 1e-6,
    "rope_theta": 1e6,
}
"""Values that all sizes of Qwen 3 share."""

TINY: Mapping[str, Any] = {
    "vocab_size": 272,
    "max_seq_len": 512,
    "dim": 128,
    "n_layers": 4,
    "n_heads": 4,
    "n_kv_heads": 2,
    "ffn_dim": 384,
    "tie_embeddings": True,
}
"""Ours, for tests and first steps."""

MIXTURE: Mapping[str, Any] = {**THIRD, "n_kv_heads": 4, "n_experts": 128, "top_k": 8, "normalise": True}
"""Values that the mixtures of Qwen 3 share."""
MIXTURES: Mapping[str, Mapping[str, Any]] = {
    "3-tiny-moe": {
        "generation": 3,
        **TINY,
        "head_dim": 32,
        "n_experts": 8,
        "top_k": 2,
        "expert_dim": 48,
        "normalise": True,
    },
    "3-30b-a3b": {**MIXTURE, "dim": 2048, "n_layers": 48, "n_heads": 32, "ffn_dim": 6144, "expert_dim": 768},
    "3-235b-a22b": {**MIXTURE, "dim": 4096, "n_layers": 94, "n_heads": 64, "ffn_dim": 12_288, "expert_dim": 1536},
}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "2.5-tiny": {"generation": 2, **TINY, "head_dim": 32},
    "2.5-0.5b": {
        **SECOND,
        "max_seq_len": 32_768,
        "dim": 896,
        "n_layers": 24,
        "n_heads": 14,
        "n_kv_heads": 2,
        "head_dim": 64,
        "ffn_dim": 4864,
        "tie_embeddings": True,
    },
    "2.5-1.5b": {
        **SECOND,
        "dim": 1536,
        "n_layers": 28,
        "n_heads": 12,
        "n_kv_heads": 2,
        "ffn_dim": 8960,
        "tie_embeddings": True,
    },
    "2.5-3b": {
        **SECOND,
        "max_seq_len": 32_768,
        "dim": 2048,
        "n_layers": 36,
        "n_heads": 16,
        "n_kv_heads": 2,
        "ffn_dim": 11_008,
        "tie_embeddings": True,
    },
    "2.5-7b": {
        **SECOND,
        "vocab_size": 152_064,
        "dim": 3584,
        "n_layers": 28,
        "n_heads": 28,
        "n_kv_heads": 4,
        "ffn_dim": 18_944,
    },
    "2.5-14b": {
        **SECOND,
        "vocab_size": 152_064,
        "dim": 5120,
        "n_layers": 48,
        "n_heads": 40,
        "n_kv_heads": 8,
        "ffn_dim": 13_824,
        "norm_eps": 1e-5,
    },
    "2.5-32b": {
        **SECOND,
        "vocab_size": 152_064,
        "dim": 5120,
        "n_layers": 64,
        "n_heads": 40,
        "n_kv_heads": 8,
        "ffn_dim": 27_648,
        "norm_eps": 1e-5,
    },
    "2.5-72b": {
        **SECOND,
        "vocab_size": 152_064,
        "dim": 8192,
        "n_layers": 80,
        "n_heads": 64,
        "n_kv_heads": 8,
        "ffn_dim": 29_568,
        "norm_eps": 1e-5,
    },
    "3-tiny": {"generation": 3, **TINY, "head_dim": 48},
    "3-0.6b": {**THIRD, "dim": 1024, "n_layers": 28, "n_heads": 16, "ffn_dim": 3072, "tie_embeddings": True},
    "3-1.7b": {**THIRD, "dim": 2048, "n_layers": 28, "n_heads": 16, "ffn_dim": 6144, "tie_embeddings": True},
    "3-4b": {**THIRD, "dim": 2560, "n_layers": 36, "n_heads": 32, "ffn_dim": 9728, "tie_embeddings": True},
    "3-8b": {**THIRD, "dim": 4096, "n_layers": 36, "n_heads": 32, "ffn_dim": 12_288},
    "3-14b": {**THIRD, "dim": 5120, "n_layers": 40, "n_heads": 40, "ffn_dim": 17_408},
    "3-32b": {**THIRD, "dim": 5120, "n_layers": 64, "n_heads": 64, "ffn_dim": 25_600},
    **MIXTURES,
}

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "2.5-tiny": {"optimizer.lr": 3e-3},
    "3-tiny": {"optimizer.lr": 3e-3},
    "3-tiny-moe": {"optimizer.lr": 3e-3},
}
"""Size → defaults of a run."""
