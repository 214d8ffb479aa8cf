"""A config as ``transformers`` reads it, of the text-only classes."""

from __future__ import annotations

from typing import Any

from .config import GemmaConfig
from .names import ARCHITECTURES, LATER_NAMES, MODEL_TYPES, NAMES


def their_config(config: GemmaConfig) -> dict[str, Any]:
    """``config.json`` as transformers reads it, releases 4 and 5.

    The dtype is that of the tensors. The special ids belong to a tokenizer and are unknown here; left out, transformers
    would take 0, 1 and 2.
    """
    return {
        "architectures": [ARCHITECTURES[config.generation]],
        "model_type": MODEL_TYPES[config.generation],
        **{theirs: getattr(config, mine) for theirs, mine in NAMES.items()},
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "tie_word_embeddings": True,
        **(_later(config) if config.generation >= 2 else {}),
        **(_two_ropes(config) if config.generation >= 3 else _rope(config)),
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _later(config: GemmaConfig) -> dict[str, Any]:
    local = [config.is_local(index) for index in range(config.n_layers)]
    return {
        **{theirs: getattr(config, mine) for theirs, mine in LATER_NAMES.items()},
        "query_pre_attn_scalar": _as_integer(config.query_scalar),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in local],
        "sliding_window_pattern": config.global_every,
    }


def _as_integer(number: float | None) -> float | None:
    """Return a number as an int where it is one: transformers takes no other."""
    return int(number) if number is not None and number == int(number) else number


def _rope(config: GemmaConfig) -> dict[str, Any]:
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
    }


def _two_ropes(config: GemmaConfig) -> dict[str, Any]:
    scaling = (
        {"rope_type": "default"} if config.rope_factor == 1 else {"rope_type": "linear", "factor": config.rope_factor}
    )
    return {
        "rope_theta": config.rope_theta,
        "rope_local_base_freq": config.rope_local_theta,
        "rope_scaling": None if config.rope_factor == 1 else scaling,
        "rope_parameters": {
            "full_attention": {"rope_theta": config.rope_theta, **scaling},
            "sliding_attention": {"rope_theta": config.rope_local_theta, "rope_type": "default"},
        },
    }
