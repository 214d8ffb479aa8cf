"""Folders of Hugging Face's Qwen2ForCausalLM and Qwen3ForCausalLM, read and described.

What the keys mean, and what holds where one is missing: Qwen2Config and Qwen3Config of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core import WeightsError
from mt_core.weights import FIXED, Architecture, decoder_format, layer_types

from .config import QwenConfig

ROPE_TYPES = ("default", "linear", "yarn", "llama3")


def _read(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Blocks from ``max_window_layers`` on have the window, when it is used at all."""
    count, start = config["num_hidden_layers"], config.get("max_window_layers", 28)
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    used = {} if window is None or start >= count else {"window": window, "window_from": start}
    kinds = layer_types(window if used and index >= start else None for index in range(count))
    if config.get("layer_types") not in (None, kinds):
        raise WeightsError(
            f"{file} has layer_types={config['layer_types']}; supported here: {kinds}, as max_window_layers says"
        )
    return used


def _read_second(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Published configs of generation 2 leave the width of a head to be computed."""
    head = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    return {"head_dim": head, **_read(config, file)}


def _write(config: QwenConfig) -> dict[str, Any]:
    return {
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "max_window_layers": config.n_layers if config.window is None else config.window_from,
        "layer_types": layer_types(config.window_of(index) for index in range(config.n_layers)),
    }


ARCHITECTURES = (
    Architecture(
        name="Qwen2ForCausalLM",
        model_type="qwen2",
        ours={"generation": 2},
        defaults={"tie_word_embeddings": False, "head_dim": None},
        rope_types=ROPE_TYPES,
        read=_read_second,
        write=_write,
    ),
    Architecture(
        name="Qwen3ForCausalLM",
        model_type="qwen3",
        ours={"generation": 3},
        defaults={"tie_word_embeddings": False},
        fixed={**FIXED, "attention_bias": (False, None)},
        rope_types=ROPE_TYPES,
        read=_read,
        write=_write,
    ),
)
HUGGINGFACE = decoder_format(*ARCHITECTURES)
