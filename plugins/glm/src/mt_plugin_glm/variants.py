"""Named sizes as data: ``config.json`` of the folder on https://huggingface.co/zai-org that stands beside each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHARED: Mapping[str, Any] = {
    "vocab_size": 151_552,
    "max_seq_len": 32_768,
    "n_kv_heads": 2,
    "norm_eps": 1e-5,
}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    # Ours: for a first run on a CPU.
    "4-tiny": {
        "vocab_size": 272,
        "max_seq_len": 512,
        "dim": 128,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 2,
        "ffn_dim": 384,
    },
    # GLM-4-9B-0414
    "4-9b": {**_SHARED, "dim": 4096, "n_layers": 40, "n_heads": 32, "ffn_dim": 13_696, "attention_bias": True},
    # GLM-4-32B-Base-0414
    "4-32b": {**_SHARED, "dim": 6144, "n_layers": 61, "n_heads": 48, "ffn_dim": 23_040},
}
"""Size → config values."""

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"4-tiny": {"optimizer.lr": 3e-3}}
"""Size → defaults of a run."""
