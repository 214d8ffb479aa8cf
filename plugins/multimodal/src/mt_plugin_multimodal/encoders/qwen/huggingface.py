"""Folders of Hugging Face's Qwen2_5_VLForConditionalGeneration and Qwen3VLForConditionalGeneration: the tower, read and written.

What the keys mean, and what holds where one is missing: configuration_qwen2_5_vl.py and configuration_qwen3_vl.py of
https://github.com/huggingface/transformers. Torch is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, WHOLE_TYPES, Loaders, check_folder, is_whole, open_folder, read_json, refuse_values

from ...image_config import PREPROCESSOR, PROCESSOR, processor_of, read_pixels, written_values
from ...tokens import read_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from . import TowerConfig

TOWER = "visual."
"""How names of the tower begin in files; in modules, and for Qwen3-VL in files, ``model.`` stands in front."""
KEYS: Mapping[str, str] = {
    "hidden_size": "width",
    "depth": "blocks",
    "num_heads": "heads",
    "intermediate_size": "mlp",
    "patch_size": "patch",
}
"""Their key → our option."""
FIXED: Mapping[str, tuple[Any, ...]] = {
    "temporal_patch_size": (2, None),
    "in_channels": (3, None),
    "in_chans": (3, None),
}
_PIXELS = ("min_pixels", "max_pixels")
_EDGES = ("shortest_edge", "longest_edge")


@dataclass(frozen=True, kw_only=True)
class TowerNames:
    """Names in the files of one generation: the class of whole models, ``defaults`` of keys, those that are ``fixed``, and those that
    others have not (``keys``); ``processor`` is the class of their processor, and ``prefix`` stands in front of names in files."""

    architecture: str
    keys: Mapping[str, str]
    defaults: Mapping[str, Any]
    fixed: Mapping[str, tuple[Any, ...]]
    processor: str
    prefix: str


QWEN2_5 = TowerNames(
    architecture="Qwen2_5_VLForConditionalGeneration",
    keys={"fullatt_block_indexes": "full", "window_size": "window", "spatial_merge_size": "merge"},
    defaults={
        "depth": 32,
        "hidden_size": 3584,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "fullatt_block_indexes": (7, 15, 23, 31),
        "window_size": 112,
        "spatial_merge_size": 2,
    },
    fixed={"hidden_act": ("silu", None)},
    processor="Qwen2_5_VLProcessor",
    prefix=TOWER,
)
QWEN3 = TowerNames(
    architecture="Qwen3VLForConditionalGeneration",
    keys={"deepstack_visual_indexes": "taps", "spatial_merge_size": "merge"},
    defaults={
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "deepstack_visual_indexes": (8, 16, 24),
        "num_position_embeddings": 2304,
        "spatial_merge_size": 2,
    },
    fixed={"hidden_act": ("gelu_pytorch_tanh", None)},
    processor="Qwen3VLProcessor",
    prefix=f"model.{TOWER}",
)


def tower_format(names: TowerNames) -> WeightsFormat:
    """Return the format of a generation's folders."""
    return WeightsFormat(
        name="huggingface",
        matches=lambda path: is_whole(path, names.architecture),
        values=lambda path: read_values(path, names),
        tensors=lambda path, config: read_tensors(path),
        exported=lambda config: write_values(config, names),
        written=lambda config, loaders: write_tensors(config, loaders, names),
    )


def read_values(path: Path, names: TowerNames) -> dict[str, Any]:
    """Return sizes, the image processor's values, and the tokens around an image. Raises ``WeightsError`` for what is not here."""
    folder = path.parent if path.is_file() else path
    file = folder / CONFIG
    said = read_json(file)
    vision = said.get("vision_config") or {}
    refuse_values(vision, file, {**FIXED, **names.fixed})
    given = {**names.defaults, **{key: value for key, value in vision.items() if value is not None}}
    try:
        values = {ours: given[theirs] for theirs, ours in {**KEYS, **names.keys}.items()}
        if "num_position_embeddings" in given:
            values["table"] = isqrt(given["num_position_embeddings"])
        values |= _read_processor(folder, values)
    except (AttributeError, KeyError, LookupError, TypeError, ValueError) as error:
        raise WeightsError(f"{file} has a value of the wrong type: {error}; correct it or fetch it again") from error
    check_folder(path)
    return {**values, **read_tokens(said, folder)}


def _read_processor(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Bounds of the area, filter, mean and standard deviation."""
    found = processor_of(folder)
    if found is None:
        return {}
    file, said = found
    for key, ours in (("patch_size", "patch"), ("merge_size", "merge")):
        if said.get(key, values[ours]) != values[ours]:
            raise WeightsError(
                f"{file} has {key}={said[key]}, and {CONFIG} beside it {values[ours]}; take the files that were published together"
            )
    size = said.get("size") or {}
    areas = {
        ours: said.get(old) or size.get(new)
        for ours, old, new in zip(("min_area", "max_area"), _PIXELS, _EDGES, strict=True)
    }
    return {**read_pixels(said, file), **{name: area for name, area in areas.items() if area is not None}}


def open_visual(path: Path) -> Loaders:
    """Return one loader for each tensor of the tower, its mergers included, by the names that it has inside."""
    found = {name.removeprefix("model."): load for name, load in open_folder(path).items()}
    return {name.removeprefix(TOWER): load for name, load in found.items() if name.startswith(TOWER)}


def read_tensors(path: Path) -> Loaders:
    """Return one loader for each tensor of the tower, without mergers."""
    return {
        name: load
        for name, load in open_visual(path).items()
        if not name.startswith(("merger.", "deepstack_merger_list."))
    }


# ------------------------------------------------------------------------------------------------------------- writing


def write_values(config: TowerConfig, names: TowerNames) -> dict[str, Any]:
    """Return the keys of a whole model's ``config.json``. Raises ``WeightsError`` for a tower that no such model has."""
    shape = config.shape
    if config.depth != shape.blocks:
        raise WeightsError(
            f"the features come from layer {config.layer} of {shape.blocks}, and in a {names.architecture} from the last; keep the run's"
            " checkpoint"
        )
    ours = {**shape.__dict__, "merge": config.merge, **config.places()}
    vision = {theirs: ours[name] for theirs, name in {**KEYS, **names.keys}.items()}
    if "window" in ours:
        vision["window_size"] = ours["window"] * shape.patch
    if "table" in ours:
        vision["num_position_embeddings"] = ours["table"] ** 2
    vision |= {key: known[0] for key, known in names.fixed.items()}
    stated = _stated_values(config)
    return {
        **{key: value for key, value in stated.items() if key.endswith("_token_id")},
        "architectures": [names.architecture],
        "model_type": WHOLE_TYPES[names.architecture].model_type,
        "vision_config": {**(stated.get("vision_config") or {}), **vision, "temporal_patch_size": 2, "in_channels": 3},
    }


def _stated_values(config: TowerConfig) -> dict[str, Any]:
    """Return the values stated in the folder of its weights; some of them play no part in features of images."""
    path = None if config.weights is None else Path(config.weights)
    return {} if path is None else read_json((path.parent if path.is_file() else path) / CONFIG)


def write_tensors(config: TowerConfig, loaders: Mapping[str, Callable[[], Tensor]], names: TowerNames) -> Loaders:
    """Return the tensors under the names of a folder."""
    return {f"{names.prefix}{name}": load for name, load in loaders.items()}


def write_processor(config: TowerConfig, names: TowerNames, token: str) -> dict[str, dict[str, Any]]:
    """Return ``preprocessor_config.json`` and ``processor_config.json``, which make of an image what the run has made of it."""
    image = {
        "image_processor_type": "Qwen2VLImageProcessor",
        **written_values(config),
        "patch_size": config.shape.patch,
        "temporal_patch_size": 2,
        "merge_size": config.merge,
        "size": dict(zip(_EDGES, (config.min_area, config.max_area), strict=True)),
    }
    return {
        PREPROCESSOR: {"processor_class": names.processor, **image},
        PROCESSOR: {"processor_class": names.processor},
    }
