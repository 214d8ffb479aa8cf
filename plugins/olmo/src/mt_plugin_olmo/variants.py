"""Named sizes as data: ``config.json`` of the folder on https://huggingface.co/allenai that stands beside each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_7B: Mapping[str, Any] = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "ffn_dim": 11_008}
_32B: Mapping[str, Any] = {"dim": 5120, "n_layers": 64, "n_heads": 40, "n_kv_heads": 8, "ffn_dim": 27_648}
_SECOND: Mapping[str, Any] = {"generation": 2, "vocab_size": 100_352, "max_seq_len": 4096}
_THIRD: Mapping[str, Any] = {
    "generation": 3,
    "vocab_size": 100_278,
    "max_seq_len": 65_536,
    "window": 4096,
    "window_pattern": ("window", "window", "window", "full"),
    "rope_scaling": {
        "type": "yarn",
        "factor": 8.0,
        "original_max_seq_len": 8192,
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    # Ours: for a first run on a CPU.
    "2-tiny": {
        "vocab_size": 272,
        "max_seq_len": 512,
        "dim": 128,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 2,
        "ffn_dim": 384,
        "generation": 2,
    },
    # Ours: for a first run on a CPU.
    "3-tiny": {
        "vocab_size": 272,
        "max_seq_len": 512,
        "dim": 128,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 2,
        "ffn_dim": 384,
        "generation": 3,
        "window": 64,
        "window_pattern": ("window", "window", "window", "full"),
    },
    # OLMo-2-0425-1B
    "2-1b": {**_SECOND, "dim": 2048, "n_layers": 16, "n_heads": 16, "n_kv_heads": 16, "ffn_dim": 8192},
    "2-7b": {**_SECOND, **_7B},  # OLMo-2-1124-7B
    # OLMo-2-1124-13B
    "2-13b": {**_SECOND, "dim": 5120, "n_layers": 40, "n_heads": 40, "n_kv_heads": 40, "ffn_dim": 13_824},
    "2-32b": {**_SECOND, **_32B},  # OLMo-2-0325-32B
    "3-7b": {**_THIRD, **_7B},  # Olmo-3-1025-7B
    "3-32b": {**_THIRD, **_32B},  # Olmo-3-1125-32B
}
"""Size → config values."""

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"2-tiny": {"optimizer.lr": 3e-3}, "3-tiny": {"optimizer.lr": 3e-3}}
"""Size → defaults of a run."""
