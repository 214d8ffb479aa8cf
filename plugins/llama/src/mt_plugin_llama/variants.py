"""The named sizes, as data: one entry per published checkpoint, with where its figures come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]

_PLAIN: Values = {"rope_scaling": {"type": "none"}, "tie_embeddings": False}
_LLAMA3_STRETCH: Values = {
    "type": "llama3",
    "factor": 8.0,
    "original_max_seq_len": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}

# Llama 1: https://arxiv.org/abs/2302.13971, table 2; params.json as in https://huggingface.co/huggyllama/llama-7b
_LLAMA1: Values = {**_PLAIN, "vocab_size": 32_000, "max_seq_len": 2048, "norm_eps": 1e-6, "rope_theta": 10_000.0}
# Llama 2: https://arxiv.org/abs/2307.09288, table 1 and appendix A.2
_LLAMA2: Values = {**_PLAIN, "vocab_size": 32_000, "max_seq_len": 4096, "norm_eps": 1e-5, "rope_theta": 10_000.0}
# Llama 3: https://arxiv.org/abs/2407.21783, table 3
_LLAMA3: Values = {**_PLAIN, "vocab_size": 128_256, "max_seq_len": 8192, "norm_eps": 1e-5, "rope_theta": 500_000.0}
# Llama 3.1: https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md (128k context)
_LLAMA31: Values = {**_LLAMA3, "max_seq_len": 131_072, "rope_scaling": _LLAMA3_STRETCH}
# Llama 3.2: https://github.com/meta-llama/llama-models/blob/main/models/llama3_2/MODEL_CARD.md (shared embeddings)
_LLAMA32: Values = {**_LLAMA31, "rope_scaling": {**_LLAMA3_STRETCH, "factor": 32.0}, "tie_embeddings": True}

_7B: Values = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "ffn_dim": 11_008}
_13B: Values = {"dim": 5120, "n_layers": 40, "n_heads": 40, "n_kv_heads": 40, "ffn_dim": 13_824}
_3_8B: Values = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "ffn_dim": 14_336}
_70B: Values = {"dim": 8192, "n_layers": 80, "n_heads": 64, "n_kv_heads": 8, "ffn_dim": 28_672}

VARIANTS: Mapping[str, Values] = {
    # Ours: for a first run on a CPU. 272 is the byte tokenizer's 259 ids, rounded up to a multiple of 16.
    "tiny": {
        "vocab_size": 272,
        "max_seq_len": 512,
        "dim": 128,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 2,
        "ffn_dim": 336,
        "norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_embeddings": False,
    },
    # https://huggingface.co/huggyllama/llama-7b/blob/main/config.json
    "1-7b": {**_LLAMA1, **_7B},
    # https://huggingface.co/huggyllama/llama-13b/blob/main/config.json
    "1-13b": {**_LLAMA1, **_13B},
    # https://huggingface.co/huggyllama/llama-30b/blob/main/config.json (Meta's paper calls it 33B)
    "1-33b": {**_LLAMA1, "dim": 6656, "n_layers": 60, "n_heads": 52, "n_kv_heads": 52, "ffn_dim": 17_920},
    # https://huggingface.co/huggyllama/llama-65b/blob/main/config.json
    "1-65b": {
        **_LLAMA1,
        "norm_eps": 1e-5,
        "dim": 8192,
        "n_layers": 80,
        "n_heads": 64,
        "n_kv_heads": 64,
        "ffn_dim": 22_016,
    },
    # https://huggingface.co/meta-llama/Llama-2-7b-hf/blob/main/config.json
    "2-7b": {**_LLAMA2, **_7B},
    # https://huggingface.co/meta-llama/Llama-2-13b-hf/blob/main/config.json
    "2-13b": {**_LLAMA2, **_13B},
    # https://huggingface.co/meta-llama/Llama-2-70b-hf/blob/main/config.json
    "2-70b": {**_LLAMA2, **_70B},
    # https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json
    "3-8b": {**_LLAMA3, **_3_8B},
    # https://huggingface.co/meta-llama/Meta-Llama-3-70B/blob/main/config.json
    "3-70b": {**_LLAMA3, **_70B},
    # https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json
    "3.1-8b": {**_LLAMA31, **_3_8B},
    # https://huggingface.co/meta-llama/Llama-3.1-70B/blob/main/config.json
    "3.1-70b": {**_LLAMA31, **_70B},
    # https://huggingface.co/meta-llama/Llama-3.1-405B/blob/main/config.json
    "3.1-405b": {**_LLAMA31, "dim": 16_384, "n_layers": 126, "n_heads": 128, "n_kv_heads": 8, "ffn_dim": 53_248},
    # https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json
    "3.2-1b": {**_LLAMA32, "dim": 2048, "n_layers": 16, "n_heads": 32, "n_kv_heads": 8, "ffn_dim": 8192},
    # https://huggingface.co/meta-llama/Llama-3.2-3B/blob/main/config.json
    "3.2-3b": {**_LLAMA32, "dim": 3072, "n_layers": 28, "n_heads": 24, "n_kv_heads": 8, "ffn_dim": 8192},
    # https://huggingface.co/meta-llama/Llama-3.3-70B-Instruct/blob/main/config.json
    "3.3-70b": {**_LLAMA31, **_70B},
}
"""Size → config values. Family and size as Meta names them, joined with a dash."""

VARIANT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"tiny": {"optimizer.lr": 3e-3}}
"""Keys of the run that a size knows better than the core; what the user writes wins."""
