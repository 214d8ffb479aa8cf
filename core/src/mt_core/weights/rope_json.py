"""Rotary parameters in ``config.json``, read and written as transformers 4 and 5 have them.

What the keys mean: ``modeling_rope_utils.py`` of https://github.com/huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core.config.rope import RopeScaling
from mt_core.errors import WeightsError

ROPE_TYPES: Mapping[str, str] = {
    "default": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
}
"""Their ``rope_type`` → ours."""

_ORIGINAL = "original_max_position_embeddings"
_NAMED = {_ORIGINAL: "original_max_seq_len", "mrope_section": "sections", "mrope_interleaved": "sections_interleaved"}
_ROPE_KEYS = _NAMED | {
    name: name
    for kind in ROPE_TYPES.values()
    for name in RopeScaling.parameters_of(kind)
    if name not in _NAMED.values()
}
"""Their rotary parameter → ours."""


def read_rope(config: Mapping[str, Any], file: Path, kinds: Sequence[str]) -> dict[str, Any]:
    """Return ``rope_theta`` and ``rope_scaling``, as transformers 4 (keys of these names) and 5 (``rope_parameters``) write them."""
    given = rope_parameters(config)
    theta = given.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
    old = given.pop("type", None)
    kind = given.pop("rope_type", None) or old or "default"
    kind = "default" if kind == "mrope" else kind  # as Qwen's files of release 4 call it
    if kind not in kinds:
        raise WeightsError(f"{file} has rotary scaling {kind!r}; this family reads {', '.join(kinds)}")
    given.pop("partial_rotary_factor", None)  # in the fixed values, or the family's own
    factors = set() if kind == "longrope" else {"short_factor", "long_factor"}
    if unknown := sorted(set(given) - (_ROPE_KEYS.keys() - factors)):
        raise WeightsError(
            f"{file} has {', '.join(unknown)} in a rotary scaling {kind!r}, which does not read it; "
            "remove it if it plays no part"
        )
    if "truncate" in given:
        given["truncate"] = given["truncate"] or False  # transformers reads null so, and only a key left out as true
    scaling = {_ROPE_KEYS[key]: value for key, value in given.items() if value is not None}
    return {"rope_theta": float(theta), **_read_scaling(ROPE_TYPES[kind], scaling, config, file)}


def rope_of_full_blocks(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the config with the rotary parameters of blocks without a window, where they are given by kind of block."""
    by_kind = config.get("rope_parameters") or {}
    if "full_attention" not in by_kind:
        return dict(config)
    full = {**by_kind["full_attention"], **(config.get("rope_scaling") or {})}
    window = by_kind.get("sliding_attention") or {}
    if window.get("rope_type", "default") != "default" or window.get("rope_theta") not in (
        None,
        full.get("rope_theta"),
    ):
        raise WeightsError(
            f"{file} has rope_parameters {window} for sliding_attention; supported: default, and one base"
        )
    return {**config, "rope_parameters": full, "rope_scaling": None}


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary parameters under the key of either release."""
    return dict(config.get("rope_scaling") or config.get("rope_parameters") or {})


def _read_scaling(kind: str, scaling: dict[str, Any], config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return our scaling. The original length may stand outside the rotary parameters, and then wins, or be left out."""
    longest, reads = config["max_position_embeddings"], RopeScaling.parameters_of(kind)
    if kind == "dynamic":
        scaling["original_max_seq_len"] = longest
    elif "original_max_seq_len" in reads:
        scaling["original_max_seq_len"] = config.get(_ORIGINAL) or scaling.get("original_max_seq_len") or longest
    if kind in ("yarn", "longrope"):
        scaling.setdefault("factor", longest / scaling["original_max_seq_len"])
    if "factor" in reads and "factor" not in scaling:
        raise WeightsError(f"{file} has rotary scaling {kind!r} without a factor; fetch the file again")
    # max_position_embeddings is the original length there, and the scaling is made for factor times as much
    longer = {"max_seq_len": int(longest * float(scaling["factor"]))} if kind == "dynamic" else {}
    return {"rope_scaling": {"type": kind, **{key: value for key, value in scaling.items() if key in reads}}, **longer}


def write_rope(config: Any, *, plain_windows: bool = False) -> dict[str, Any]:
    """Return the keys that ``read_rope`` reads, for both releases."""
    scaling = config.rope_scaling.active_parameters()
    ours = scaling.pop("type")
    kind = next(theirs for theirs, name in ROPE_TYPES.items() if name == ours)
    # dynamic has no name for the original length but max_position_embeddings
    longest = {"max_position_embeddings": scaling.pop("original_max_seq_len")} if kind == "dynamic" else {}
    theirs = {name: key for key, name in _ROPE_KEYS.items()}
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in scaling.items()}
    rope = {"rope_type": kind, **{theirs[name]: value for name, value in lists.items()}}
    theta = {"rope_theta": config.rope_theta}
    by_kind = {"full_attention": {**theta, **rope}, "sliding_attention": {**theta, "rope_type": "default"}}
    return {
        **longest,
        **theta,
        "rope_scaling": None if rope == {"rope_type": "default"} else rope,
        "rope_parameters": by_kind if plain_windows else {**theta, **rope},
    }
