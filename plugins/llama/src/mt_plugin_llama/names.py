"""Hugging Face's names of the config's values, for reading and for writing."""

from __future__ import annotations

NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "intermediate_size": "ffn_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
    "attention_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
}
"""Their key → ours, where nothing but the name differs."""

ROPE_NAMES = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_seq_len",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}
"""Their rotary parameter → ours."""

ROPE_TYPES = {"default": "none", "linear": "linear", "dynamic": "dynamic", "yarn": "yarn", "llama3": "llama3"}
"""Their ``rope_type`` → ours."""
