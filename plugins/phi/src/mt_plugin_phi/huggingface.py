"""Folders of Hugging Face's Phi3ForCausalLM, read and described.

What the keys mean, and what holds where one is missing: Phi3Config of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.weights import FIXED, Architecture, decoder_format, write_rope

from .config import PhiConfig


def _read(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    part = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    return {"window": config.get("sliding_window"), "rotary_part": part}


def _write(config: PhiConfig) -> dict[str, Any]:
    """Release 4 takes no more than three rotary parameters; what they leave out follows from the lengths then."""
    scaling, part = config.rope_scaling, {"partial_rotary_factor": config.rotary_part}
    rope = {**write_rope(config)["rope_parameters"], **part}
    original = scaling.original_max_seq_len or config.max_seq_len
    keys = ("short_factor", "long_factor")
    follows = scaling.attention_factor is None and scaling.factor == config.max_seq_len / original
    old = {"type": "longrope", **{key: rope[key] for key in keys}} if follows and keys[0] in rope else rope
    return {
        **part,
        "original_max_position_embeddings": original,
        "rope_scaling": None if scaling.type == "none" else old,
        "rope_parameters": rope,
        "sliding_window": config.window,
    }


ARCHITECTURES = (
    Architecture(
        name="Phi3ForCausalLM",
        model_type="phi3",
        defaults={
            "num_key_value_heads": None,
            "head_dim": None,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "original_max_position_embeddings": 4096,
        },
        fixed={
            **{key: known for key, known in FIXED.items() if key != "partial_rotary_factor"},
            "resid_pdrop": (0.0, None),
            "embd_pdrop": (0.0, None),
        },
        rope_types=("default", "longrope"),
        read=_read,
        write=_write,
    ),
)
HUGGINGFACE = decoder_format(*ARCHITECTURES)
