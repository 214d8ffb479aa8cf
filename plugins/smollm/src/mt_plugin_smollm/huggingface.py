"""Folders of Hugging Face's SmolLM3ForCausalLM, read and described.

What the keys mean, and what holds where one is missing: SmolLM3Config of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core import WeightsError
from mt_core.weights import FIXED, Architecture, decoder_format, layer_types, read_windows, write_windows

from .config import SmolLMConfig


def _read(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """``no_rope_layers`` has a 1 for each block with positions."""
    count, flags = config["num_hidden_layers"], config.get("no_rope_layers")
    if flags is None:
        every = config.get("no_rope_layer_interval", 4)
    else:
        every = flags.index(0) + 1 if 0 in flags else None
        if flags != _flags(count, every):
            raise WeightsError(
                f"{file} has no_rope_layers={flags}; supported: a 0 for each so-many-th of {count} blocks"
            )
    return {"no_rope_every": every, **_read_windows(config, file, _flags(count, every))}


def _read_windows(config: Mapping[str, Any], file: Path, flags: list[int]) -> dict[str, Any]:
    """Blocks without positions have the window where a file does not say which, if it is used at all."""
    is_used, window, types = config.get("use_sliding_window"), config.get("sliding_window"), config.get("layer_types")
    if not is_used and "sliding_attention" in (types or ()):
        raise WeightsError(
            f"{file} has layer_types={types} with use_sliding_window={is_used!r}, with which transformers masks blocks by kernel: eager"
            " attention has the window, flash attention has none. Set use_sliding_window to true for the window, or layer_types to null"
        )
    types = types or layer_types(window if not has_rope else None for has_rope in flags)
    if not is_used or "sliding_attention" not in types:
        return {}
    if window is None:
        raise WeightsError(f"{file} has layer_types={types} without sliding_window; set it to the window (tokens)")
    return read_windows({**config, "layer_types": types}, file)


def _flags(count: int, every: int | None) -> list[int]:
    return [int(every is None or (index + 1) % every != 0) for index in range(count)]


def _write(config: SmolLMConfig) -> dict[str, Any]:
    return {
        "no_rope_layers": _flags(config.n_layers, config.no_rope_every),
        "no_rope_layer_interval": config.no_rope_every or config.n_layers + 1,
        "use_sliding_window": config.window is not None,
        **write_windows(config),
    }


ARCHITECTURES = (
    Architecture(
        name="SmolLM3ForCausalLM",
        model_type="smollm3",
        defaults={"head_dim": None, "rms_norm_eps": 1e-6, "rope_theta": 2e6, "tie_word_embeddings": True},
        fixed={
            **FIXED,
            "attention_bias": (False, None),
            "mlp_bias": (False, None),
        },
        read=_read,
        write=_write,
    ),
)
HUGGINGFACE = decoder_format(*ARCHITECTURES)
