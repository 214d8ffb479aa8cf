"""Folders of Hugging Face's Olmo2ForCausalLM and Olmo3ForCausalLM, read and described.

What the keys mean, and what holds where one is missing: Olmo2Config and Olmo3Config of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core import WeightsError
from mt_core.weights import FIXED, Architecture, decoder_format, layer_types, read_windows, write_windows

DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
NO_BIAS = {**FIXED, "attention_bias": (False, None)}


THETA = 500_000.0
"""Base of the wavelengths where a file has none."""


def _read_third(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Each fourth block sees all where a file does not say which."""
    _refuse_other_bases(config, file)
    count = config["num_hidden_layers"]
    usual = layer_types(None if (index + 1) % 4 == 0 else 1 for index in range(count))
    return read_windows({**config, "layer_types": config.get("layer_types") or usual}, file)


def _refuse_other_bases(config: Mapping[str, Any], file: Path) -> None:
    """Refuse what releases of transformers read differently: 5 has rotary parameters by kind of block, and takes ``rope_theta`` for
    blocks without a window alone."""
    by_kind = config.get("rope_parameters") or {}
    if by_kind and not by_kind.keys() & {"full_attention", "sliding_attention"}:
        raise WeightsError(
            f"{file} has rope_parameters={by_kind}, which transformers reads by kind of block alone; put them under full_attention, and"
            " give sliding_attention the same rope_theta"
        )
    full, window = ({**(by_kind.get(kind) or {})} for kind in ("full_attention", "sliding_attention"))
    full |= config.get("rope_scaling") or {}
    bases = full.get("rope_theta", config["rope_theta"]), window.get("rope_theta", THETA)
    if bases[0] != bases[1]:
        raise WeightsError(
            f"{file} has the rotary base {bases[0]} for blocks that see all, and {bases[1]} for those with a window, as release 5 of"
            " transformers reads it; supported: one base. Give rope_theta in rope_parameters of both full_attention and sliding_attention"
        )


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
        defaults={**DEFAULTS, "rope_theta": THETA, "sliding_window": 4096},
        fixed=NO_BIAS,
        plain_windows=True,
        read=_read_third,
        write=write_windows,
    ),
)
HUGGINGFACE = decoder_format(*ARCHITECTURES)
