"""Named sizes as data: ``config.json`` of the folder on https://huggingface.co/HuggingFaceTB that stands beside each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    },
    "3b": {  # SmolLM3-3B-Base
        "vocab_size": 128_256,
        "max_seq_len": 65_536,
        "dim": 2048,
        "n_layers": 36,
        "n_heads": 16,
        "n_kv_heads": 4,
        "ffn_dim": 11_008,
        "rope_theta": 5e6,
    },
}
"""Size → config values."""

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"tiny": {"optimizer.lr": 3e-3}}
"""Size → defaults of a run."""
