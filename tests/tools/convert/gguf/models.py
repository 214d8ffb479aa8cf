"""Small models of transformers with a tokenizer that was trained here, as folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
WIDE = {"head_dim": 256, "query_pre_attn_scalar": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
"""transformers' reader takes Gemma's own width of a head."""
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama-tied": (LlamaConfig, {"tie_word_embeddings": True}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 128}),
    "gemma": (GemmaConfig, WIDE),
    "gemma2": (Gemma2Config, WIDE),
    "gemma3": (Gemma3TextConfig, {**WIDE, "num_hidden_layers": 6}),
}


def make(name: str, base: Path, folder: Path, **more: Any) -> Any:
    """Write a model with the tokenizer of ``base``, no norm or bias at the value that it begins with; returns it."""
    kind, own = CONFIGS[name]
    size = json.loads((base / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**{**SHAPE, "vocab_size": size, **own, **more})).float().eval()
    for key, value in model.named_parameters():
        if "norm" in key or "bias" in key:
            value.data.normal_(std=0.3)
        elif "q_proj" in key or "k_proj" in key:
            value.data *= 8  # so that it matters which token is looked at
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (base / file).exists():
            shutil.copyfile(base / file, folder / file)
    return model
