"""Folders of Hugging Face with a vision transformer in them: its own, a whole CLIP or SigLIP, or a model that sees with it.

What the keys mean, and what holds where one is missing: configuration_clip.py, configuration_siglip.py and configuration_dinov2.py of
https://github.com/huggingface/transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json, refuse_values

from ...image_config import read_processor
from ...llava import TOWER, read_features, write_features

if TYPE_CHECKING:
    from torch import Tensor

    from . import ViTConfig

PREFIXES = (
    "",
    "vision_model.",
    "dinov2.",
    *(f"{model}vision_tower.{inside}" for model in ("", "model.") for inside in ("vision_model.", "")),
    "model.vision_model.",
)
"""Where a folder may have the encoder."""
KEYS: Mapping[str, str] = {
    "hidden_size": "width",
    "num_hidden_layers": "blocks",
    "num_attention_heads": "heads",
    "intermediate_size": "mlp",
    "patch_size": "patch",
    "image_size": "trained_image",
    "hidden_act": "activation",
    "layer_norm_eps": "eps",
}
"""Their key → our option."""
DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
}
FIXED: Mapping[str, tuple[Any, ...]] = {"num_channels": (3, None), "attention_dropout": (0.0, 0, None)}
_OF_A_FOLDER = ("architectures", "dtype", "torch_dtype", "transformers_version", "quantization_config")
PATCHES = ("embeddings.patch_embedding.weight", "embeddings.patch_embeddings.projection.weight")
DIMENSIONS: Mapping[str, int] = {"embeddings.class_embedding": 1, "embeddings.position_embedding.weight": 2}
"""Tensors of which some files have more dimensions, of size 1."""
LEFT_OUT = re.compile(r"head\.|embeddings\.(mask_token|position_ids)$")
"""Tensors that are left out: the pooling head, the mask token, and a buffer of old files."""


@dataclass(frozen=True, kw_only=True)
class FolderNames:
    """Names in the files of one family.

    ``model_types``, ``defaults`` of missing keys, ``fixed`` ones that change the maths, whether images are ``crops`` where nothing is
    said, whether there is a ``class_token``, whether a LLaVA may have it (``in_llava``), the ``margin`` of
    ``ImageConfig``, and patterns of names → ours (``renamed``).
    """

    encoder: str
    model_types: Sequence[str]
    defaults: Mapping[str, Any]
    crops: bool
    class_token: bool
    in_llava: bool = False
    margin: tuple[int, int] = (1, 1)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


def vit_format(names: FolderNames) -> WeightsFormat:
    """Return the format of a family's folders."""
    return WeightsFormat(
        name="huggingface",
        matches=is_folder,
        values=lambda path: read_values(path, names),
        tensors=lambda path, config: read_tensors(path, config, names),
        exported=(lambda config: write_values(config, names)) if names.in_llava else None,
        written=write_tensors if names.in_llava else None,
    )


def read_values(path: Path, names: FolderNames) -> dict[str, Any]:
    """Return sizes, the image processor's values, and for LLaVA the layer. Raises ``WeightsError`` for another family's folder."""
    folder = path.parent if path.is_file() else path
    file = folder / CONFIG
    said = read_json(file)
    try:
        values = _values(said, file, names)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{file} has a value of the wrong type: {error}; correct it or fetch it again") from error
    check_folder(path)
    seen = read_processor(folder, crops=names.crops, margin=names.margin)
    return {**values, "image": values["trained_image"], **seen}


def _values(said: Mapping[str, Any], file: Path, names: FolderNames) -> dict[str, Any]:
    vision = said.get("vision_config") or said
    kind = vision.get("model_type") or said.get("model_type")
    if kind not in names.model_types:
        raise WeightsError(
            f"{file} has the vision model {kind!r}; the encoder {names.encoder!r} reads {' and '.join(names.model_types)}"
        )
    refuse_values(vision, file, {**FIXED, **names.fixed})
    given = {**DEFAULTS, **names.defaults, **{key: value for key, value in vision.items() if value is not None}}
    if "mlp_ratio" in given:
        given["intermediate_size"] = int(given["hidden_size"] * given["mlp_ratio"])
    values = {ours: given[theirs] for theirs, ours in KEYS.items()}
    if given.get("use_swiglu_ffn"):  # two thirds of the width, rounded up to a multiple of 8
        values |= {"gated": True, "mlp": (int(values["mlp"] * 2 / 3) + 7) // 8 * 8}
    return {**values, **read_features(said, file, class_token=names.class_token)}


def read_tensors(path: Path, config: ViTConfig, names: FolderNames) -> Loaders:
    """Return one loader for each tensor of the encoder, under our names, without what is not built."""
    found: Loaders = {}
    for name, load in open_tower(path).items():
        if not LEFT_OUT.match(name):
            ours = name
            for pattern, replacement in names.renamed.items():
                ours = re.sub(pattern, replacement, ours)
            if is_built(ours, config):
                found[ours] = _reshaped(load, DIMENSIONS[ours]) if ours in DIMENSIONS else load
    return found


def open_tower(path: Path) -> Loaders:
    """Return one loader for each tensor of the encoder in a folder, by the names that it has inside of the encoder there."""
    loaders = open_folder(path)
    prefix = next((each for each in PREFIXES if any(each + patches in loaders for patches in PATCHES)), None)
    if prefix is None:
        raise WeightsError(
            f"{path} has no tensors of a vision model; looked for embeddings of patches behind {', '.join(PREFIXES[1:])}"
        )
    return {name.removeprefix(prefix): load for name, load in loaders.items() if name.startswith(prefix)}


def is_built(name: str, config: ViTConfig) -> bool:
    """Whether the encoder has what it calls so: no block above the layer, and no norm behind another one than the last."""
    if name.startswith(("encoder.layers.", "post_layernorm.")):
        block = re.match(r"encoder\.layers\.(\d+)\.", name)
        return config.has_last_norm if block is None else int(block[1]) < config.depth
    return True


# ------------------------------------------------------------------------------------------------------------- writing


def write_values(config: ViTConfig, names: FolderNames) -> dict[str, Any]:
    """Return the keys of a LLaVA's ``config.json``. Raises ``WeightsError`` for an encoder that a LLaVA cannot have."""
    shape = config.shape
    if shape.image // shape.patch != config.trained_rows:
        raise WeightsError(
            f"encoders.{names.encoder}.image={shape.image} is not trained_image={config.trained_image}, and a LLaVA interpolates no"
            " positions; keep the run's checkpoint"
        )
    if config.has_last_norm:
        raise WeightsError(
            f"the features of {names.encoder} come from behind its last norm, and those of a LLaVA from a layer; train with"
            f" --encoders.{names.encoder}.layer -2 or -1, or keep the run's checkpoint"
        )
    ours = {theirs: getattr(shape, name, None) or getattr(config, name) for theirs, name in KEYS.items()}
    ours["image_size"] = config.trained_image or shape.image
    vision = {**_stated_values(config), **ours, "model_type": names.model_types[-1], "num_channels": 3}
    return {"vision_config": vision, **write_features(config, class_token=names.class_token)}


def _stated_values(config: ViTConfig) -> dict[str, Any]:
    """Return the encoder's values stated in the folder of its weights; some of them play no part in features."""
    if config.weights is None:
        return {}
    path = Path(config.weights)
    said = read_json((path.parent if path.is_file() else path) / CONFIG)
    return {key: value for key, value in (said.get("vision_config") or said).items() if key not in _OF_A_FOLDER}


def write_tensors(config: ViTConfig, loaders: Mapping[str, Callable[[], Tensor]]) -> Loaders:
    """Return the tensors of a LLaVA's files; those that are not built are copied from the folder of the weights.

    Raises ``WeightsError`` where there is no such folder.
    """
    found = {f"{TOWER}vision_model.{name}": load for name, load in loaders.items()}
    if config.weights is None:
        if config.depth < config.shape.blocks:
            raise WeightsError(
                f"{config.shape.blocks - config.depth} blocks of the encoder are above layer {config.layer} and were never built, and there"
                f" is no folder to copy them from; train with blocks={config.depth} and layer -1, or keep the run's checkpoint"
            )
        return found
    copied = {name: load for name, load in open_tower(Path(config.weights)).items() if name not in loaders}
    return {**{f"{TOWER}vision_model.{name}": load for name, load in copied.items()}, **found}


def _reshaped(load: Callable[[], Tensor], dimensions: int) -> Callable[[], Tensor]:
    """A loader without the dimensions of 1 in front."""

    def reshape() -> Tensor:
        tensor = load()
        return tensor.reshape(tensor.shape[-dimensions:])

    return reshape
