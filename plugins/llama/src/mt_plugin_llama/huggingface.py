"""Llama in Hugging Face's format: ``config.json`` and safetensors (or ``.bin``), whole or in shards.

What the keys mean: ``LlamaConfig`` and ``modeling_rope_utils.py`` of https://github.com/huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core import RopeScaling, WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json, without_tied_head

from .config import LlamaConfig
from .export import their_config
from .names import NAMES, ROPE_NAMES, ROPE_TYPES
from .shapes import EMBEDDING, HEAD

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
"""What transformers takes for a key that ``config.json`` leaves out."""

_FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", None),
    "attention_dropout": (0, None),
    "partial_rotary_factor": (1, None),
    "quantization_config": (None,),
}
"""Keys that change the maths or the encoding, and the values that this family has."""


def values(path: Path) -> Mapping[str, Any]:
    """The shape in ``config.json``. Raises ``WeightsError`` for another architecture, a feature that is not ours, or files
    that are missing or cut short."""
    file = (path.parent if path.is_file() else path) / CONFIG
    config = read_json(file)
    _refuse_other_maths(file, config)
    try:
        shape = _shape(config) | _rope(file, config)
    except (TypeError, ValueError, AttributeError) as error:
        raise WeightsError(f"{file} has a value of the wrong type: {error}; correct it or fetch it again") from error
    check_folder(path)
    return shape


def _refuse_other_maths(file: Path, config: Mapping[str, Any]) -> None:
    found = config.get("architectures") or [config.get("model_type")]
    if "LlamaForCausalLM" not in found and config.get("model_type") != "llama":
        raise WeightsError(f"{file} describes {', '.join(map(str, found))}; this family reads LlamaForCausalLM")
    other = [
        f"{key}={config[key]!r} (supported: {', '.join(map(str, known))})"
        for key, known in _FIXED.items()
        if config.get(key) not in known
    ]
    if other:
        raise WeightsError(
            f"{file} has {', '.join(other)}, which Llama here does not do; "
            "use weights without it, or set the key to null if it plays no part"
        )


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    given = {**_DEFAULTS, **{key: value for key, value in config.items() if value is not None}}
    shape = {ours: given[theirs] for theirs, ours in NAMES.items()}
    shape["norm_eps"] = float(shape["norm_eps"])
    shape["n_kv_heads"] = given.get("num_key_value_heads", shape["n_heads"])
    if "head_dim" in given and given["head_dim"] * shape["n_heads"] != shape["dim"]:
        shape["head_dim"] = given["head_dim"]
    return shape


# -------------------------------------------------------------------------------------------------------------- rotary


def _rope(file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Old configs have ``rope_theta`` and ``rope_scaling``, those of transformers 5 one ``rope_parameters``."""
    given = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    theta = float(given.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0)
    old = given.pop("type", None)
    kind = given.pop("rope_type", None) or old or "default"
    if kind not in ROPE_TYPES:
        raise WeightsError(f"{file} has rotary scaling {kind!r}; this family knows {', '.join(ROPE_TYPES)}")
    if given.pop("partial_rotary_factor", 1) not in (1, None):
        raise WeightsError(f"{file} rotates only a part of each head, which Llama here does not; use other weights")
    if unknown := sorted(set(given) - set(ROPE_NAMES)):
        raise WeightsError(
            f"{file} has rotary parameters that this family does not know: {', '.join(unknown)}; "
            "remove them if they play no part"
        )
    scaling = {ROPE_NAMES[key]: value for key, value in given.items() if value is not None}
    longest = config.get("max_position_embeddings") or _DEFAULTS["max_position_embeddings"]
    return {
        "rope_theta": theta,
        **_SCALINGS.get(kind, _plain_scaling)(file, ROPE_TYPES[kind], scaling, config, longest),
    }


def _plain_scaling(
    file: Path, kind: str, scaling: dict[str, Any], config: Mapping[str, Any], longest: int
) -> dict[str, Any]:
    if kind != "none" and "factor" not in scaling:
        raise WeightsError(f"{file} has rotary scaling {kind!r} without a factor; fetch the file again")
    reads = RopeScaling.parameters_of(kind)
    return {"rope_scaling": {"type": kind, **{name: value for name, value in scaling.items() if name in reads}}}


def _dynamic(file: Path, kind: str, scaling: dict[str, Any], config: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """``max_position_embeddings`` is the original length here; the scaling is made for ``factor`` times as much."""
    found = _plain_scaling(file, kind, {**scaling, "original_max_seq_len": longest}, config, longest)
    return {**found, "max_seq_len": int(longest * float(scaling["factor"]))}


def _stretched_scaling(
    file: Path, kind: str, scaling: dict[str, Any], config: Mapping[str, Any], longest: int
) -> dict[str, Any]:
    """The original length may stand outside the rotary parameters, and then wins, or be left out."""
    outside = config.get("original_max_position_embeddings")
    original = outside or scaling.get("original_max_seq_len") or longest
    if kind == "yarn":
        scaling = {"factor": longest / original, **scaling}
    return _plain_scaling(file, kind, {**scaling, "original_max_seq_len": original}, config, longest)


_SCALINGS = {"dynamic": _dynamic, "yarn": _stretched_scaling, "llama3": _stretched_scaling}
"""What a type of theirs needs beside a change of names."""

# ------------------------------------------------------------------------------------------------------------- tensors


def tensors(path: Path, config: LlamaConfig) -> Loaders:
    """One loader a tensor. Rotary buffers and a repeated tied head are left out: both follow from the rest."""
    loaders = {name: load for name, load in open_folder(path).items() if not name.endswith("rotary_emb.inv_freq")}
    return without_tied_head(loaders, path, embedding=EMBEDDING, head=HEAD) if config.tie_embeddings else loaders


HUGGINGFACE = WeightsFormat(
    name="huggingface", matches=is_folder, values=values, tensors=tensors, exported=their_config
)
