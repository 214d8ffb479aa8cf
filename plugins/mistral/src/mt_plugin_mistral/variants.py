"""Named sizes as data: ``config.json`` of the folder on https://huggingface.co/mistralai that stands beside each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHARED: Mapping[str, Any] = {"n_kv_heads": 8, "norm_eps": 1e-5, "rope_theta": 1e6}
_7B: Mapping[str, Any] = {
    **_SHARED,
    "max_seq_len": 32_768,
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "ffn_dim": 14_336,
}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    # Ours: for a first run on a CPU.
    "tiny": {
        "vocab_size": 272,
        "max_seq_len": 512,
        "dim": 128,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 2,
        "ffn_dim": 384,
        "window": 64,
    },
    "7b-v0.1": {**_7B, "vocab_size": 32_000, "window": 4096, "rope_theta": 1e4},  # Mistral-7B-v0.1
    "7b": {**_7B, "vocab_size": 32_768},  # Mistral-7B-v0.3
    "nemo-12b": {  # Mistral-Nemo-Base-2407
        **_SHARED,
        "vocab_size": 131_072,
        "max_seq_len": 128_000,
        "dim": 5120,
        "n_layers": 40,
        "n_heads": 32,
        "head_dim": 128,
        "ffn_dim": 14_336,
    },
    "small-22b": {  # Mistral-Small-Instruct-2409
        **_SHARED,
        "vocab_size": 32_768,
        "max_seq_len": 32_768,
        "dim": 6144,
        "n_layers": 56,
        "n_heads": 48,
        "ffn_dim": 16_384,
    },
    "small-24b": {  # Mistral-Small-24B-Base-2501
        **_SHARED,
        "vocab_size": 131_072,
        "max_seq_len": 32_768,
        "dim": 5120,
        "n_layers": 40,
        "n_heads": 32,
        "head_dim": 128,
        "ffn_dim": 32_768,
        "rope_theta": 1e8,
    },
    "large-123b": {  # Mistral-Large-Instruct-2407
        **_SHARED,
        "vocab_size": 32_768,
        "max_seq_len": 131_072,
        "dim": 12_288,
        "n_layers": 88,
        "n_heads": 96,
        "ffn_dim": 28_672,
    },
    "ministral-8b": {  # Ministral-8B-Instruct-2410
        **_SHARED,
        "vocab_size": 131_072,
        "max_seq_len": 32_768,
        "dim": 4096,
        "n_layers": 36,
        "n_heads": 32,
        "ffn_dim": 12_288,
        "rope_theta": 1e8,
        "window": 32_768,
        "window_pattern": ("full", "window", "window", "window"),
    },
}
"""Size → config values."""

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"tiny": {"optimizer.lr": 3e-3}}
"""Size → defaults of a run."""
