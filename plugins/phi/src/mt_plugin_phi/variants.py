"""Named sizes as data: ``config.json`` of the folder on https://huggingface.co/microsoft that stands beside each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MEDIUM: Mapping[str, Any] = {"dim": 5120, "n_layers": 40, "n_heads": 40, "n_kv_heads": 10, "ffn_dim": 17_920}

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
    "3-mini": {  # Phi-3-mini-4k-instruct
        "vocab_size": 32_064,
        "max_seq_len": 4096,
        "dim": 3072,
        "n_layers": 32,
        "n_heads": 32,
        "n_kv_heads": 32,
        "ffn_dim": 8192,
        "window": 2047,
    },
    # Phi-3-medium-4k-instruct
    "3-medium": {**_MEDIUM, "vocab_size": 32_064, "max_seq_len": 4096, "window": 2047},
    "4-14b": {**_MEDIUM, "vocab_size": 100_352, "max_seq_len": 16_384, "rope_theta": 250_000.0},  # phi-4
}
"""Size → config values."""

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"tiny": {"optimizer.lr": 3e-3}}
"""Size → defaults of a run."""
