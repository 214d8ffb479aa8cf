"""Folders of Hugging Face's Glm4ForCausalLM, read and described.

What the keys mean, and what holds where one is missing: Glm4Config of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.weights import FIXED, KEYS, Architecture, decoder_format, write_rope

from .config import GlmConfig


def _read(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return {"rotary_part": rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 0.5}


def _write(config: GlmConfig) -> dict[str, Any]:
    part = {"partial_rotary_factor": config.rotary_part}
    return {**part, "rope_parameters": {**write_rope(config)["rope_parameters"], **part}}


ARCHITECTURES = (
    Architecture(
        name="Glm4ForCausalLM",
        model_type="glm4",
        keys={**KEYS, "attention_bias": "attention_bias"},
        defaults={
            "head_dim": 128,
            "rms_norm_eps": 1.5625e-7,
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
        fixed={key: known for key, known in FIXED.items() if key != "partial_rotary_factor"},
        read=_read,
        write=_write,
    ),
)
HUGGINGFACE = decoder_format(*ARCHITECTURES)
