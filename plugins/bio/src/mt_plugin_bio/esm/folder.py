"""Folders of Hugging Face's EsmModel (ESM-2), and of Nucleotide Transformer v2. Torch is imported when a tensor is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mt_core import WeightsFormat
from mt_core.weights import Loaders
from mt_plugin_bio.folders import block_tensors, config_file, is_published, read_folder, require_numbers, require_values

from .config import ESM2_IDS, EsmConfig
from .frequencies import stored_as_half

KEYS: Mapping[str, str] = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "ffn_dim",
}
SHARED: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": ("rotary",),
    "emb_layer_norm_before": (False, None),
    "is_folding_model": (False, None),
}
ESM2_FIXED: Mapping[str, tuple[Any, ...]] = {
    **SHARED,
    "layer_norm_eps": (1e-5,),
    "token_dropout": (True,),
    "vocab_size": (len(ESM2_IDS),),
}
NUCLEOTIDE_FIXED: Mapping[str, tuple[Any, ...]] = {
    **SHARED,
    "layer_norm_eps": (1e-12,),
    "token_dropout": (False,),
    "add_bias_fnn": (False,),
}
_OTHERS = re.compile(
    r"^lm_head\.|^classifier\.|contact_head\.|pooler\.|\.inv_freq$|\.position_embeddings\.|\.position_ids$"
)
"""Tensors of heads, of positions that rotary ones stand for, and frequencies, which are computed."""


def _is_nucleotide(config: Mapping[str, Any]) -> bool:
    """NT v2 has biases in no MLP, which its own config class says."""
    return config.get("model_type") == "esm" and config.get("add_bias_fnn") is False


def _is_esm2(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "esm" and not _is_nucleotide(config)


def _values(path: Path, fixed: Mapping[str, tuple[Any, ...]], keys: Mapping[str, str]) -> Mapping[str, Any]:
    config, file = read_folder(path), config_file(path)
    require_values(config, fixed, file)
    found = require_numbers(config, keys, file)
    return found | {"half_frequencies": stored_as_half(path, found["dim"] // found["n_heads"])}


def _tensors(path: Path, config: EsmConfig) -> Loaders:
    return block_tensors(path, config, prefix="esm.", left_out=_OTHERS, last_norm="emb_layer_norm_after")


def _format(
    name: str, test: Callable[[Mapping[str, Any]], bool], fixed: Mapping[str, tuple[Any, ...]], keys: Mapping[str, str]
) -> WeightsFormat:
    return WeightsFormat(
        name=name,
        matches=lambda path: is_published(path, test),
        values=lambda path: _values(path, fixed, keys),
        tensors=_tensors,
    )


ESM2 = _format("ESM-2", _is_esm2, ESM2_FIXED, KEYS)
NUCLEOTIDE_TRANSFORMER = _format(
    "Nucleotide Transformer v2", _is_nucleotide, NUCLEOTIDE_FIXED, {**KEYS, "vocab_size": "vocab_size"}
)
