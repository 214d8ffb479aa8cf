"""Gemma in Hugging Face's format. Of the multimodal checkpoints the text part is read.

What the keys mean: ``GemmaConfig``, ``Gemma2Config`` and ``Gemma3TextConfig`` of
https://github.com/huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json, without_tied_head

from .config import GemmaConfig
from .export import their_config
from .names import (
    ARCHITECTURES,
    DEFAULTS,
    FIXED,
    GLOBAL_EVERY,
    LATER_NAMES,
    MODEL_TYPES,
    MULTIMODAL,
    NAMES,
    PREFIXES,
    VISION,
)
from .notices import say_vision
from .shapes import EMBEDDING, HEAD


def values(path: Path) -> Mapping[str, Any]:
    """The shape in ``config.json``. Raises ``WeightsError`` for another architecture, a feature that is not ours, or files
    that are missing or cut short."""
    shape = read_shape((path.parent if path.is_file() else path) / CONFIG)
    check_folder(path)
    return shape


def read_shape(file: Path) -> dict[str, Any]:
    """The shape that a ``config.json`` describes."""
    generation, config = _text_config(file, read_json(file))
    _refuse_other_maths(file, generation, config)
    try:
        return _shape(file, generation, config) | _rope(file, generation, config)
    except (TypeError, ValueError, AttributeError) as error:
        raise WeightsError(f"{file} has a value of the wrong type: {error}; correct it or fetch it again") from error


def _text_config(file: Path, config: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """The generation, and the keys of the text model."""
    found = config.get("architectures") or [config.get("model_type")]
    if MULTIMODAL in found or config.get("model_type") == "gemma3":
        text = config.get("text_config")
        if not isinstance(text, dict):
            raise WeightsError(f"{file} describes {MULTIMODAL} without a text_config; fetch it again")
        return 3, text
    for generation, architecture in ARCHITECTURES.items():
        if architecture in found or config.get("model_type") == MODEL_TYPES[generation]:
            return generation, config
    raise WeightsError(
        f"{file} describes {', '.join(map(str, found))}; this family reads"
        f" {', '.join([*ARCHITECTURES.values(), MULTIMODAL])}"
    )


def _refuse_other_maths(file: Path, generation: int, config: Mapping[str, Any]) -> None:
    known = FIXED if generation == 2 else {**FIXED, "attn_logit_softcapping": (None,)}
    config = {"is_causal": True, **config}
    other = {key: config[key] for key in known if config.get(key) not in known[key]}
    if other:
        said = "; ".join(
            f"{key}={value!r}, and {_describe_supported(known[key])} is supported" for key, value in other.items()
        )
        raise WeightsError(f"{file} has {said}. Use weights without it, or remove the key if it plays no part")


def _describe_supported(allowed: tuple[Any, ...]) -> str:
    return " or ".join(repr(value) for value in allowed if value is not None) or "only null"


def _shape(file: Path, generation: int, config: Mapping[str, Any]) -> dict[str, Any]:
    given = {**DEFAULTS[generation], **{key: value for key, value in config.items() if value is not None}}
    shape: dict[str, Any] = {"generation": generation} | {ours: given[theirs] for theirs, ours in NAMES.items()}
    shape["norm_eps"] = float(shape["norm_eps"])
    if generation == 1:
        return shape
    off = {key: None for key in LATER_NAMES if key in config and config[key] is None}
    for theirs, ours in LATER_NAMES.items():
        value = (given | off).get(theirs)
        shape[ours] = value if value is None or theirs == "sliding_window" else float(value)
    shape["global_every"] = _global_every(file, generation, given)
    return shape


def _global_every(file: Path, generation: int, given: Mapping[str, Any]) -> int:
    """Read the pattern from ``layer_types``, or in older files of generation 3 from ``sliding_window_pattern``.

    transformers takes the length of a pattern from nothing else: every second block of generation 2 is global.
    """
    types, default = given.get("layer_types"), GLOBAL_EVERY[generation]
    if types is None:
        return int(given.get("sliding_window_pattern", default)) if generation == 3 else default
    longest = int(given.get("sliding_window_pattern") or default)  # as long as it was, where no block is global
    first = types.index("full_attention") + 1 if "full_attention" in types else max(longest, len(types) + 1)
    if types != ["sliding_attention" if (index + 1) % first else "full_attention" for index in range(len(types))]:
        raise WeightsError(
            f"{file} has layer_types that do not repeat ({', '.join(map(str, types))}); supported are sliding_attention"
            " blocks with every so-many-th a full_attention one"
        )
    return first


# -------------------------------------------------------------------------------------------------------------- rotary


def _rope(file: Path, generation: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Old configs have single keys, those of transformers 5 ``rope_parameters``, for each kind of block in Gemma 3."""
    new = config.get("rope_parameters") or {}
    if generation < 3:
        given = dict(config.get("rope_scaling") or new)
        theta = given.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
        _factor(file, given, "none")
        return {"rope_theta": float(theta)}
    full = dict(new.get("full_attention") or {}) | dict(config.get("rope_scaling") or {})
    local = dict(new.get("sliding_attention") or {})
    if unknown := sorted(set(new) - {"full_attention", "sliding_attention"}):
        raise WeightsError(f"{file} has rope_parameters {', '.join(unknown)}; they belong under full_attention")
    theta = full.pop("rope_theta", None) or config.get("rope_theta") or 1_000_000.0
    local_theta = local.pop("rope_theta", None) or config.get("rope_local_base_freq") or 10_000.0
    _factor(file, local, "none")
    return {
        "rope_theta": float(theta),
        "rope_local_theta": float(local_theta),
        "rope_factor": _factor(file, full, "linear"),
    }


def _factor(file: Path, given: dict[str, Any], allowed: str) -> float:
    old = given.pop("type", None)
    kind = given.pop("rope_type", None) or old or "default"
    if kind not in ("default", allowed):
        raise WeightsError(f"{file} has rotary scaling {kind!r} where this family knows {allowed}")
    factor = given.pop("factor", None) if kind == "linear" else 1.0
    if factor is None or given:
        raise WeightsError(f"{file} has rotary scaling {kind!r} with {given or 'no factor'}; fetch the file again")
    return float(factor)


# ------------------------------------------------------------------------------------------------------------- tensors


def tensors(path: Path, config: GemmaConfig) -> Loaders:
    """One loader a tensor of the text model. A repeated tied head is left out, and what sees images, which is said."""
    found = open_folder(path)
    vision = [name for name in found if any(fnmatchcase(name, pattern) for pattern in VISION)]
    if vision:
        say_vision(path, len(vision), VISION)
    seen = set(vision)
    loaders = {_ours(name): load for name, load in found.items() if name not in seen}
    return without_tied_head(loaders, path, embedding=EMBEDDING, head=HEAD)


def _ours(name: str) -> str:
    for theirs, ours in PREFIXES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


HUGGINGFACE = WeightsFormat(
    name="huggingface", matches=is_folder, values=values, tensors=tensors, exported=their_config
)
