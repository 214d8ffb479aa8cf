"""The named sizes, as data: one entry per published checkpoint, with where its figures come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]

# Gemma 1: https://arxiv.org/abs/2403.08295, table 1
_GEMMA1: Values = {"generation": 1, "vocab_size": 256_000, "max_seq_len": 8192, "head_dim": 256}
# Gemma 2: https://arxiv.org/abs/2408.00118, table 1 and section 2
_GEMMA2: Values = {
    "generation": 2,
    "vocab_size": 256_000,
    "max_seq_len": 8192,
    "head_dim": 256,
    "query_scalar": 256.0,
    "attention_softcap": 50.0,
    "final_softcap": 30.0,
    "window": 4096,
    "global_every": 2,
}
# Gemma 3: https://arxiv.org/abs/2503.19786, table 1 and section 2
_GEMMA3: Values = {
    "generation": 3,
    "vocab_size": 262_144,
    "max_seq_len": 32_768,
    "head_dim": 256,
    "query_scalar": 256.0,
    "window": 512,
    "global_every": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_theta": 10_000.0,
}
# The text part of those that also see images; 64 rows of the embedding belong to the image's tokens.
_GEMMA3_LONG: Values = {
    **_GEMMA3,
    "vocab_size": 262_208,
    "max_seq_len": 131_072,
    "window": 1024,
    "rope_factor": 8.0,
}
# Ours: for a first run on a CPU. 272 is the byte tokenizer's 259 ids, rounded up to a multiple of 16.
_TINY: Values = {
    "vocab_size": 272,
    "max_seq_len": 512,
    "dim": 128,
    "n_layers": 4,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 32,
    "ffn_dim": 336,
}

VARIANTS: Mapping[str, Values] = {
    "1-tiny": {**_TINY, "generation": 1},
    "2-tiny": {
        **_TINY,
        "generation": 2,
        "attention_softcap": 50.0,
        "final_softcap": 30.0,
        "query_scalar": 32.0,
        "window": 64,
        "global_every": 2,
    },
    "3-tiny": {
        **_TINY,
        "generation": 3,
        "query_scalar": 32.0,
        "window": 64,
        "global_every": 4,
        "rope_theta": 1_000_000.0,
        "rope_local_theta": 10_000.0,
    },
    # https://huggingface.co/google/gemma-2b/blob/main/config.json
    "1-2b": {**_GEMMA1, "dim": 2048, "n_layers": 18, "n_heads": 8, "n_kv_heads": 1, "ffn_dim": 16_384},
    # https://huggingface.co/google/gemma-7b/blob/main/config.json
    "1-7b": {**_GEMMA1, "dim": 3072, "n_layers": 28, "n_heads": 16, "n_kv_heads": 16, "ffn_dim": 24_576},
    # https://huggingface.co/google/gemma-2-2b/blob/main/config.json
    "2-2b": {**_GEMMA2, "dim": 2304, "n_layers": 26, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 9216},
    # https://huggingface.co/google/gemma-2-9b/blob/main/config.json
    "2-9b": {**_GEMMA2, "dim": 3584, "n_layers": 42, "n_heads": 16, "n_kv_heads": 8, "ffn_dim": 14_336},
    # https://huggingface.co/google/gemma-2-27b/blob/main/config.json (the scalar is dim / n_heads)
    "2-27b": {
        **_GEMMA2,
        "dim": 4608,
        "n_layers": 46,
        "n_heads": 32,
        "n_kv_heads": 16,
        "head_dim": 128,
        "ffn_dim": 36_864,
        "query_scalar": 144.0,
    },
    # https://huggingface.co/google/gemma-3-270m/blob/main/config.json
    "3-270m": {**_GEMMA3, "dim": 640, "n_layers": 18, "n_heads": 4, "n_kv_heads": 1, "ffn_dim": 2048},
    # https://huggingface.co/google/gemma-3-1b-pt/blob/main/config.json
    "3-1b": {**_GEMMA3, "dim": 1152, "n_layers": 26, "n_heads": 4, "n_kv_heads": 1, "ffn_dim": 6912},
    # https://huggingface.co/google/gemma-3-4b-pt/blob/main/config.json (text_config)
    "3-4b": {**_GEMMA3_LONG, "dim": 2560, "n_layers": 34, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 10_240},
    # https://huggingface.co/google/gemma-3-12b-pt/blob/main/config.json (text_config)
    "3-12b": {**_GEMMA3_LONG, "dim": 3840, "n_layers": 48, "n_heads": 16, "n_kv_heads": 8, "ffn_dim": 15_360},
    # https://huggingface.co/google/gemma-3-27b-pt/blob/main/config.json (text_config; the scalar is dim / n_heads)
    "3-27b": {
        **_GEMMA3_LONG,
        "dim": 5376,
        "n_layers": 62,
        "n_heads": 32,
        "n_kv_heads": 16,
        "head_dim": 128,
        "ffn_dim": 21_504,
        "query_scalar": 168.0,
    },
}
"""Size → config values: generation and size as Google names them, joined with a dash."""

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    name: {"optimizer.lr": 3e-3} for name in ("1-tiny", "2-tiny", "3-tiny")
}
"""Keys of the run that a size knows better than the core; what the user writes wins."""
