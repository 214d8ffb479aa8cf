"""Folders of Hugging Face's Qwen2ForCausalLM and Qwen3ForCausalLM, read and described.

What the keys mean, and what holds where one is missing: Qwen2Config and Qwen3Config of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core import RopeScaling, WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json, without_tied_head

from .config import SCALINGS, QwenConfig

ARCHITECTURES = {2: "Qwen2ForCausalLM", 3: "Qwen3ForCausalLM"}
"""Generation → the class that a folder names."""
MODEL_TYPES = {generation: f"qwen{generation}" for generation in ARCHITECTURES}
"""The same in a folder that names no class."""

NAMES = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_seq_len",
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "ffn_dim",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
"""Their key → ours."""

FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", None),
    "attention_bias": (False, None),
    "attention_dropout": (0.0, None),
    "partial_rotary_factor": (1.0, None),
    "quantization_config": (None,),
}
"""Keys that change the maths, and the values that this family has."""

ORIGINAL = ("original_max_position_embeddings", "original_max_seq_len")
"""The one key of a rotary scaling that has another name there, and its name here."""


def values(path: Path) -> dict[str, Any]:
    """The shape in a folder's ``config.json``. Raises ``WeightsError`` for what is not Qwen's, and for damaged files."""
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
    generation = _generation(config, file)
    if other := [key for key, known in FIXED.items() if config.get(key) not in known]:
        said = ", ".join(f"{key}={config[key]!r} (supported: {FIXED[key][0]!r})" for key in other)
        raise WeightsError(f"{file} has {said}; use weights without it")
    shape = {"tie_word_embeddings": False, **_derived_head(config, generation), **config}
    if missing := [key for key in NAMES if shape.get(key) is None]:
        raise WeightsError(
            f"{file} lacks {', '.join(missing)}; take the config.json that was published with the weights"
        )
    ours = {name: shape[key] for key, name in NAMES.items()}
    return {"generation": generation, **ours, **_window(config, file), **_rotary(config, file)}


def _generation(config: Mapping[str, Any], file: Path) -> int:
    said = config.get("architectures") or [config.get("model_type")]
    for generation, name in ARCHITECTURES.items():
        if name in said or said == [MODEL_TYPES[generation]]:
            return generation
    experts = " (a mixture of experts)" if any("moe" in str(name).lower() for name in said) else ""
    known = " and ".join(ARCHITECTURES.values())
    raise WeightsError(
        f"{file} describes {said if said != [None] else 'no architecture'}{experts}; this family reads the dense {known}"
    )


def _derived_head(config: Mapping[str, Any], generation: int) -> dict[str, Any]:
    """Published configs of generation 2 leave the width of a head to be computed."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return {"head_dim": width // heads} if generation == 2 and isinstance(width, int) and heads else {}


def _window(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Blocks from ``max_window_layers`` on have the window, when it is used at all."""
    count, start = config["num_hidden_layers"], config.get("max_window_layers", 28)
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    used = {} if window is None or start >= count else {"window": window, "window_from": start}
    kinds = _kinds(count, start if used else count)
    if config.get("layer_types") not in (None, kinds):
        raise WeightsError(
            f"{file} has layer_types={config['layer_types']}; supported here: {kinds}, as max_window_layers says"
        )
    return used


def _kinds(count: int, start: int) -> list[str]:
    return ["sliding_attention" if index >= start else "full_attention" for index in range(count)]


def _rotary(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Base and scaling, as transformers 5 (``rope_parameters``) and 4 (``rope_scaling``) write them."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
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


def tensors(path: Path, config: QwenConfig) -> Loaders:
    """One loader a tensor; the names in the files are the model's."""
    loaders = open_folder(path)
    if not config.tie_embeddings:
        return loaders
    return without_tied_head(loaders, path, embedding="model.embed_tokens.weight", head="lm_head.weight")


def their_config(config: QwenConfig) -> dict[str, Any]:
    """``config.json`` as transformers reads it, 4 and 5."""
    scaling = _scaling(config.rope_scaling)
    return {
        "architectures": [ARCHITECTURES[config.generation]],
        "model_type": MODEL_TYPES[config.generation],
        **{theirs: getattr(config, ours) for theirs, ours in NAMES.items()},
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        **({"attention_bias": False} if config.generation == 3 else {}),
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "max_window_layers": config.n_layers if config.window is None else config.window_from,
        "layer_types": _kinds(config.n_layers, config.n_layers if config.window is None else config.window_from),
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
