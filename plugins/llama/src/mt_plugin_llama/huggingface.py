"""Llama in Hugging Face's format. What the keys mean: ``LlamaConfig`` of https://github.com/huggingface/transformers."""

from __future__ import annotations

from mt_core.weights import KEYS, Architecture, decoder_format

LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    keys={**KEYS, "attention_bias": "attention_bias", "mlp_bias": "mlp_bias"},
    # what transformers takes for a key that config.json leaves out
    defaults={
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "head_dim": None,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    rope_types=("default", "linear", "dynamic", "yarn", "llama3", "longrope"),
)

HUGGINGFACE = decoder_format(LLAMA)
