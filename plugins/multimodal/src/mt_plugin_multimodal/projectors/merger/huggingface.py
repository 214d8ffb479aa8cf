"""The mergers of Qwen2.5-VL's and Qwen3-VL's folders, read and written. Torch is not imported.

What the keys mean: configuration_qwen2_5_vl.py and configuration_qwen3_vl.py of https://github.com/huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, open_folder, read_json, whole_architecture

if TYPE_CHECKING:
    from torch import Tensor

    from . import MergerConfig


@dataclass(frozen=True, kw_only=True)
class MergerNames:
    """Names in the files of one generation: the class of whole models, what stands in front of names, and their words for ours.

    ``levels`` are the blocks whose features enter the language model, where nothing is said.
    """

    architecture: str
    prefix: str
    words: Mapping[str, str]
    levels: tuple[int, ...]


KINDS = ("weight", "bias")
GENERATIONS: Mapping[Literal["rms", "layer"], MergerNames] = {
    "rms": MergerNames(
        architecture="Qwen2_5_VLForConditionalGeneration",
        prefix="",
        words={name: name for name in ("ln_q.weight", *(f"mlp.{at}.{kind}" for at in (0, 2) for kind in KINDS))},
        levels=(),
    ),
    "layer": MergerNames(
        architecture="Qwen3VLForConditionalGeneration",
        prefix="model.",
        words={
            f"{theirs}.{kind}": f"{ours}.{kind}"
            for theirs, ours in (("norm", "ln_q"), ("linear_fc1", "mlp.0"), ("linear_fc2", "mlp.2"))
            for kind in KINDS
        },
        levels=(8, 16, 24),
    ),
}
"""By the norm, which tells them apart."""
EPS = 1e-6


def _read(path: Path) -> tuple[str | None, Mapping[str, Any]]:
    """The norm of a folder's generation, and its ``config.json``; ``None`` for any other folder."""
    file = (path.parent if path.is_file() else path) / CONFIG
    said = read_json(file) if file.is_file() else {}
    found = whole_architecture(said)
    return next((norm for norm, names in GENERATIONS.items() if names.architecture == found), None), said


def values(path: Path) -> dict[str, Any]:
    """Return the shape."""
    norm, said = _read(path)
    vision = said.get("vision_config") or {}
    levels = vision.get("deepstack_visual_indexes", GENERATIONS["layer"].levels) if norm == "layer" else ()
    return {"factor": vision.get("spatial_merge_size", 2), "norm": norm, "levels": len(levels)}


def tensors(path: Path, config: MergerConfig) -> Loaders:
    """Return one loader for each tensor, under our names."""
    found = {name.removeprefix("model."): load for name, load in open_folder(path).items()}
    return {ours: found[theirs] for theirs, ours in _names(config).items() if theirs in found}


def exported(config: MergerConfig) -> dict[str, Any]:
    """Return the keys of ``config.json``. Raises ``WeightsError`` for a merger that no folder has."""
    if config.eps != EPS:
        raise WeightsError(
            f"the merger projector has eps={config.eps}, and those of Qwen {EPS}; keep the run's checkpoint"
        )
    if config.norm == "rms" and config.levels:
        raise WeightsError(
            f"the merger projector has levels={config.levels} and RMSNorm, and no folder both; keep the run's checkpoint"
        )
    return {"architectures": [GENERATIONS[config.norm].architecture]}


def written(config: MergerConfig, loaders: Mapping[str, Callable[[], Tensor]]) -> Loaders:
    """Return the tensors under the names of a folder."""
    prefix = GENERATIONS[config.norm].prefix
    return {f"{prefix}{theirs}": loaders[ours] for theirs, ours in _names(config).items()}


def _names(config: MergerConfig) -> dict[str, str]:
    """Names in files, without what stands in front → ours."""
    places = {"visual.merger.": ""}
    places |= {f"visual.deepstack_merger_list.{level}.": f"deepstack.{level}." for level in range(config.levels)}
    words = GENERATIONS[config.norm].words
    return {f"{place}{theirs}": f"{own}{ours}" for place, own in places.items() for theirs, ours in words.items()}


QWEN = WeightsFormat(
    name="qwen-vl",
    matches=lambda path: _read(path)[0] is not None,
    values=values,
    tensors=tensors,
    exported=exported,
    written=written,
)
