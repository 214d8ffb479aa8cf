"""Folders of Hugging Face's GptOssForCausalLM, in MXFP4 as published or in plain tensors, read and described.

What the keys mean, and what holds where one is missing: GptOssConfig of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import RopeScaling, WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json, without_tied_head

from .config import SCALINGS, GptOssConfig

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURE, MODEL_TYPE = "GptOssForCausalLM", "gpt_oss"

NAMES = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_seq_len",
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "num_local_experts": "n_experts",
    "num_experts_per_tok": "top_k",
    "intermediate_size": "ffn_dim",
    "swiglu_alpha": "swiglu_alpha",
    "swiglu_limit": "swiglu_limit",
    "sliding_window": "window",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
"""Their key → ours."""

DEFAULTS: Mapping[str, Any] = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "tie_word_embeddings": False}
"""What transformers takes where a file says nothing; the published ones leave the first out."""

FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", None),
    "attention_bias": (True, None),
    "attention_dropout": (0.0, None),
    "partial_rotary_factor": (1.0, None),
}
"""Keys that change the maths, and the values that this family has."""

ORIGINAL = ("original_max_position_embeddings", "original_max_seq_len")
"""The one key of a rotary scaling that has another name there, and its name here."""
QUANTISED = "mxfp4"
BLOCKS, SCALES = "_blocks", "_scales"
"""What the names of a tensor's two parts end in, where it is stored in MXFP4."""


def values(path: Path) -> dict[str, Any]:
    """The shape in a folder's ``config.json``. Raises ``WeightsError`` for what is no gpt-oss, and for damaged files."""
    shape = read_shape((path.parent if path.is_file() else path) / CONFIG)
    check_folder(path)
    return shape


def read_shape(file: Path) -> dict[str, Any]:
    """Return the shape of a ``config.json`` alone."""
    try:
        return _shape(read_json(file), file)
    except (AttributeError, TypeError, ValueError) as error:
        raise WeightsError(f"{file} has a value of the wrong type: {error}") from error


def _shape(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    said = config.get("architectures") or [config.get("model_type")]
    if ARCHITECTURE not in said and said != [MODEL_TYPE]:
        found = said if said != [None] else "no architecture"
        raise WeightsError(f"{file} describes {found}; this family reads {ARCHITECTURE}")
    _refuse_other_maths(config, file)
    shape = {**DEFAULTS, **{key: value for key, value in config.items() if value is not None}}
    if missing := [key for key in NAMES if key not in shape]:
        raise WeightsError(
            f"{file} lacks {', '.join(missing)}; take the config.json that was published with the weights"
        )
    ours = {name: shape[key] for key, name in NAMES.items()}
    return {**ours, "global_every": _global_every(config, file), **_rotary(config, file)}


def _refuse_other_maths(config: Mapping[str, Any], file: Path) -> None:
    if other := [key for key, known in FIXED.items() if config.get(key) not in known]:
        said = ", ".join(f"{key}={config[key]!r} (supported: {FIXED[key][0]!r})" for key in other)
        raise WeightsError(f"{file} has {said}; use weights without it")
    method = (config.get("quantization_config") or {"quant_method": QUANTISED}).get("quant_method")
    if method != QUANTISED:
        raise WeightsError(f"{file} has weights quantised by {method!r}; this family reads {QUANTISED!r} or none")


def _global_every(config: Mapping[str, Any], file: Path) -> int:
    """Return after how many blocks a global one comes, as ``layer_types`` says."""
    kinds = config.get("layer_types")
    if kinds is None:
        return 2
    every = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
    if kinds != _kinds(config["num_hidden_layers"], every):
        raise WeightsError(
            f"{file} has layer_types={kinds}; supported are num_hidden_layers={config['num_hidden_layers']} of"
            " 'sliding_attention', of which each so-many-th is 'full_attention'"
        )
    return every


def _kinds(count: int, every: int) -> list[str]:
    return ["sliding_attention" if index % every else "full_attention" for index in range(1, count + 1)]


def _rotary(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Base and scaling, as transformers 5 (``rope_parameters``) and 4 (``rope_scaling``) write them."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta") or 150_000.0
    old = rope.pop("type", "default")
    kind = rope.pop("rope_type", old)
    kind = "none" if kind == "default" else kind
    if kind not in SCALINGS:
        raise WeightsError(f"{file} has rotary scaling {kind!r}; this family reads {', '.join(SCALINGS)}")
    theirs, ours = ORIGINAL
    known = RopeScaling.parameters_of(kind)
    if ours in known:
        rope = {theirs: config.get("max_position_embeddings"), **rope}
    scaling = {ours if key == theirs else key: value for key, value in rope.items() if value is not None}
    if other := sorted(set(scaling) - known):
        raise WeightsError(f"{file} has {', '.join(other)} in a rotary scaling {kind!r}, which does not read it")
    return {"rope_theta": float(theta), "rope_scaling": {"type": kind, **scaling}}


def tensors(path: Path, config: GptOssConfig) -> Loaders:
    """One loader a tensor; the names are the model's, without what says that a tensor is in MXFP4."""
    loaders = _dequantised(open_folder(path), path)
    if not config.tie_embeddings:
        return loaders
    return without_tied_head(loaders, path, embedding="model.embed_tokens.weight", head="lm_head.weight")


def _dequantised(loaders: Loaders, path: Path) -> Loaders:
    """Replace the two parts of each tensor in MXFP4 by the tensor that they stand for."""
    parts = {name for name in loaders if name.endswith((BLOCKS, SCALES))}
    stems = sorted({name.removesuffix(BLOCKS).removesuffix(SCALES) for name in parts})
    if lacking := [stem for stem in stems if not {stem + BLOCKS, stem + SCALES} <= parts]:
        raise WeightsError(
            f"{path} lacks {BLOCKS} or {SCALES} of {', '.join(lacking)}, which MXFP4 needs both; fetch the files again"
        )
    whole = {name: load for name, load in loaders.items() if name not in parts}
    return whole | {stem: _loader(stem, loaders[stem + BLOCKS], loaders[stem + SCALES], path) for stem in stems}


def _loader(
    name: str, load_blocks: Callable[[], Tensor], load_scales: Callable[[], Tensor], path: Path
) -> Callable[[], Tensor]:
    return partial(_load, name, load_blocks, load_scales, path)


def _load(name: str, load_blocks: Callable[[], Tensor], load_scales: Callable[[], Tensor], path: Path) -> Tensor:
    from .mxfp4 import dequantise

    blocks, scales = load_blocks(), load_scales()
    if blocks.dim() != 4 or blocks.shape[:3] != scales.shape or blocks.shape[3] != 16:
        raise WeightsError(
            f"{path} has {name}{BLOCKS} of {tuple(blocks.shape)} and {SCALES} of {tuple(scales.shape)}; MXFP4 has (experts,"
            " outputs, groups, 16) and (experts, outputs, groups). Fetch the files again"
        )
    return dequantise(blocks, scales)


def their_config(config: GptOssConfig) -> dict[str, Any]:
    """``config.json`` as transformers reads it, 4 and 5."""
    scaling = _scaling(config.rope_scaling)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        **{theirs: getattr(config, ours) for theirs, ours in NAMES.items()},
        "hidden_act": "silu",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "layer_types": _kinds(config.n_layers, config.global_every),
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling if len(scaling) > 1 else None,
        "rope_parameters": {**scaling, "rope_theta": config.rope_theta},
    }


def _scaling(scaling: RopeScaling) -> dict[str, Any]:
    theirs, ours = ORIGINAL
    chosen = {theirs if key == ours else key: value for key, value in scaling.active_parameters().items()}
    kind = chosen.pop("type")
    return {"rope_type": "default" if kind == "none" else kind, **chosen}


HUGGINGFACE = WeightsFormat(
    name="huggingface", matches=is_folder, values=values, tensors=tensors, exported=their_config
)
