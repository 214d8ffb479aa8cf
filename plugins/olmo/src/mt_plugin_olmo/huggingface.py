"""Folders of Hugging Face's Olmo2ForCausalLM and Olmo3ForCausalLM, read and described.

What the keys mean, and what holds where one is missing: Olmo2Config and Olmo3Config of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.weights import FIXED, Architecture, decoder_format, layer_types, read_windows, write_windows

DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
NO_BIAS = {**FIXED, "attention_bias": (False, None)}


def _read_third(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Each fourth block sees all where a file does not say which."""
    count = config["num_hidden_layers"]
    usual = layer_types(None if (index + 1) % 4 == 0 else 1 for index in range(count))
    return read_windows({**config, "layer_types": config.get("layer_types") or usual}, file)


ARCHITECTURES = (
    Architecture(
        name="Olmo2ForCausalLM",
        model_type="olmo2",
        ours={"generation": 2},
        defaults={**DEFAULTS, "rope_theta": 10_000.0},
        fixed=NO_BIAS,
    ),
    Architecture(
        name="Olmo3ForCausalLM",
        model_type="olmo3",
        ours={"generation": 3},
        defaults={**DEFAULTS, "rope_theta": 500_000.0, "sliding_window": 4096},
        fixed=NO_BIAS,
        plain_windows=True,
        read=_read_third,
        write=write_windows,
    ),
)
HUGGINGFACE = decoder_format(*ARCHITECTURES)
