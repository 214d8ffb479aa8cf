"""A config as ``transformers`` reads it."""

from __future__ import annotations

from typing import Any

from .config import LlamaConfig
from .names import NAMES, ROPE_NAMES, ROPE_TYPES


def their_config(config: LlamaConfig) -> dict[str, Any]:
    """``config.json`` as transformers reads it, releases 4 and 5.

    The dtype is that of the tensors. The special ids belong to a tokenizer and are unknown here; left out, transformers would take 1 and 2.
    """
    scaling = config.rope_scaling.active_parameters()
    ours = {ours: theirs for theirs, ours in ROPE_NAMES.items()}
    kind = {mine: theirs for theirs, mine in ROPE_TYPES.items()}[scaling.pop("type")]
    written = {theirs: getattr(config, mine) for theirs, mine in NAMES.items()}
    if kind == "dynamic":  # has no name for the original length but this one
        written["max_position_embeddings"] = scaling.pop("original_max_seq_len")
    rope = {"rope_type": kind, **{ours[key]: value for key, value in scaling.items()}}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **written,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rope_scaling": None if kind == "default" else rope,
        "rope_parameters": {"rope_theta": config.rope_theta, **rope},
        "bos_token_id": None,
        "eos_token_id": None,
    }
