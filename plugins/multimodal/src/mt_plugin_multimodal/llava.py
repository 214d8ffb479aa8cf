"""What a LLaVA folder says beside the configs of its parts, read and written. Torch is not imported.

What the keys mean: ``configuration_llava.py`` and ``processing_llava.py`` of https://github.com/huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core import WeightsError
from mt_core.weights import read_json, whole_architecture

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
    return {"layer": layer, **kept, **_token(said, file.parent)}


def _token(said: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """``token``, where the folder's tokenizer has one of that id."""
    number, tokenizer = said.get("image_token_index", said.get("image_token_id")), folder / "tokenizer.json"
    if number is None or not tokenizer.is_file():
        return {}
    added = read_json(tokenizer).get("added_tokens") or []
    return next(({"token": each["content"]} for each in added if each.get("id") == number), {})
