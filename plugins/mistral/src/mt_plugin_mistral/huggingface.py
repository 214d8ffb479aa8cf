"""Folders of Hugging Face's MistralForCausalLM and MinistralForCausalLM, read and described.

What the keys mean, and what holds where one is missing: MistralConfig and MinistralConfig of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core import WeightsError
from mt_core.weights import Architecture, decoder_format, read_windows, write_windows

DEFAULTS: Mapping[str, Any] = {
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
}
ROPE_TYPES = ("default", "linear", "yarn", "llama3")


def _read(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """All blocks have the window."""
    found = read_windows(config, file)
    if found.get("window_pattern", ["window"]) != ["window"]:
        raise WeightsError(
            f"{file} has layer_types={config['layer_types']} for MistralForCausalLM, whose blocks are alike; "
            "transformers reads them in MinistralForCausalLM alone: set architectures to it, or leave layer_types out"
        )
    return found


MISTRAL = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    ours={"window_pattern": ("window",)},
    defaults=DEFAULTS,
    rope_types=ROPE_TYPES,
    read=_read,
    write=lambda config: {"sliding_window": config.window},
)
MINISTRAL = Architecture(
    name="MinistralForCausalLM",
    model_type="ministral",
    defaults=DEFAULTS,
    rope_types=ROPE_TYPES,
    read=read_windows,
    write=write_windows,
)
ARCHITECTURES = (MISTRAL, MINISTRAL)
HUGGINGFACE = decoder_format(*ARCHITECTURES)
