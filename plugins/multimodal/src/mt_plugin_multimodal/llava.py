"""Read and write the keys of a LLaVA folder beside the configs of its parts. Torch is not imported.

What the keys mean: ``configuration_llava.py`` and ``processing_llava.py`` of https://github.com/huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError
from mt_core.weights import whole_architecture

from .image_config import PREPROCESSOR, written_values
from .image_config import PROCESSOR as PROCESSOR_FILE
from .tokens import read_tokens

if TYPE_CHECKING:
    from .encoders.vit import ViTConfig

ARCHITECTURE, MODEL_TYPE = "LlavaForConditionalGeneration", "llava"
LAYER = -2
"""``vision_feature_layer`` where a whole model says none."""
TOWER, PROJECTOR = "vision_tower.", "multi_modal_projector."
"""How names of the parts begin in files; in modules of transformers ``model.`` stands in front."""


def read_features(said: Mapping[str, Any], file: Path, *, class_token: bool) -> dict[str, Any]:
    """Return the layer and what is taken of it, and the token that stands in the places of an image, for models that say so.

    Raises ``WeightsError`` for several layers, and where the first patch of an image would be left out for the class token that there
    is not.
    """
    layer = said.get("vision_feature_layer", LAYER if whole_architecture(said) == ARCHITECTURE else None)
    if layer is None:
        return {}
    if not isinstance(layer, int):
        raise WeightsError(
            f"{file} takes vision_feature_layer={layer}; an encoder here gives one layer: use weights that take one"
        )
    keeps_all = said.get("vision_feature_select_strategy", "default") == "full"
    if not class_token and not keeps_all:
        raise WeightsError(
            f"{file} has vision_feature_select_strategy='default', which leaves out the first patch of an image where the encoder has no"
            " class token; set it to 'full', or use weights that say so"
        )
    kept = {"keep_class": True} if class_token and keeps_all else {}
    return {"layer": layer, **kept, **read_tokens(said, file.parent)}


# ------------------------------------------------------------------------------------------------------------- writing


def write_features(config: ViTConfig, *, class_token: bool) -> dict[str, Any]:
    """Return the keys that ``read_features`` reads, and those that say what model it is."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "vision_feature_layer": -1 if config.layer is None else config.layer,
        "vision_feature_select_strategy": _strategy(config, class_token=class_token),
        "image_seq_length": config.trained_rows**2 + config.features_before,
    }


def _strategy(config: ViTConfig, *, class_token: bool) -> str:
    return "full" if config.features_before or not class_token else "default"


def write_processor(config: ViTConfig, token: str) -> dict[str, dict[str, Any]]:
    """Return ``preprocessor_config.json`` and ``processor_config.json``, which make of an image what the run has made of it."""
    side, class_token = config.shape.image, config.form.class_token
    square = {"height": side, "width": side}
    reading = config.processor(side=side, patch=config.shape.patch, before=config.features_before)
    image = written_values(config)
    if config.fit == "stretch" and reading.edge == side:
        image |= {"image_processor_type": "SiglipImageProcessor", "size": square}
    else:
        pads = config.fit == "pad"
        kind = "LlavaImageProcessor" if pads else "CLIPImageProcessor"
        stretched = {"height": reading.edge, "width": reading.edge}
        edge = stretched if config.fit == "stretch" else {"shortest_edge": reading.edge}
        image |= {"image_processor_type": kind, "size": edge, "crop_size": square, "do_center_crop": True}
        image |= {"do_pad": True} if pads else {}
    processor = {
        "processor_class": "LlavaProcessor",
        "image_token": token,
        "patch_size": config.shape.patch,
        "num_additional_image_tokens": int(class_token),
        "vision_feature_select_strategy": _strategy(config, class_token=class_token),
    }
    return {PREPROCESSOR: {"processor_class": "LlavaProcessor", **image}, PROCESSOR_FILE: processor}
