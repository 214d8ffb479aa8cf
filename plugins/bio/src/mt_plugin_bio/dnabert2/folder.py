"""The folder of DNABERT-2, once its weights are safetensors: the hub has a pickle. Torch is imported when a tensor is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core import WeightsFormat
from mt_core.weights import Loaders
from mt_plugin_bio.folders import block_tensors, config_file, is_published, read_folder, require_numbers, require_values

from .config import DNABERT2Config

KEYS: Mapping[str, str] = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "ffn_dim",
    "vocab_size": "vocab_size",
}
FIXED: Mapping[str, tuple[Any, ...]] = {"hidden_act": ("gelu",), "layer_norm_eps": (1e-12,), "type_vocab_size": (2,)}
_OTHERS = re.compile(r"^(bert\.)?pooler\.|^cls\.|^classifier\.|\.position_embeddings\.|\.position_ids$")
"""Tensors of heads, and of positions that the published model does not use."""


def _matches(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "bert" and "alibi_starting_size" in config


def _values(path: Path) -> Mapping[str, Any]:
    config, file = read_folder(path), config_file(path)
    require_values(config, FIXED, file)
    return require_numbers(config, KEYS, file)


def _tensors(path: Path, config: DNABERT2Config) -> Loaders:
    return block_tensors(path, config, prefix="bert.", left_out=_OTHERS)


DNABERT2 = WeightsFormat(
    name="DNABERT-2",
    matches=lambda path: is_published(path, _matches),
    values=_values,
    tensors=_tensors,
)
