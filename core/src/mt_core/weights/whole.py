"""Folders of whole models that see: a text model, an encoder and a projector under one ``config.json``. Families read the text model.

What the keys mean: ``configuration_llava.py`` of https://github.com/huggingface/transformers. Files have kept the names that modules had
before its release 4.52 (``language_model.model.*``); both are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.weights.files import Loaders, read_json
from mt_core.weights.folder import CONFIG, open_folder

WHOLE_TYPES: Mapping[str, str] = {"LlavaForConditionalGeneration": "llava"}
"""Class of transformers → its ``model_type``."""
IMAGE_TOKEN = "image_token_index"  # noqa: S105 - a key
"""Key of the id that stands in the places of media."""
TEXT_TYPES = ("llama", "qwen2", "qwen3", "mistral")
"""``model_type`` of text models that are read and written in one."""
_TEXT_NAMES: Mapping[str, str] = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}
"""How names of the text model begin in files and in modules, and in a family."""
_SHARED = ("tie_word_embeddings", "quantization_config")
"""Keys that hold for the text model where they stand outside of it."""


def whole_architecture(config: Mapping[str, Any]) -> str | None:
    """Return the class of a whole model whose text model can be read by its family; ``None`` for any other ``config.json``."""
    stated = config.get("architectures") or [config.get("model_type")]
    if not isinstance(stated, list):
        return None  # a family that reads the config says what is wrong with it
    found = next((name for name, kind in WHOLE_TYPES.items() if name in stated or kind in stated), None)
    text = config.get("text_config")
    return found if isinstance(text, dict) and text.get("model_type", "llama") in TEXT_TYPES else None


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the ``config.json`` of the text model: what stands in that of a whole model, or the whole where it is no such."""
    if whole_architecture(config) is None:
        return config
    shared = {key: config[key] for key in _SHARED if config.get(key)}
    return {"model_type": "llama", **config["text_config"], **shared}


def is_whole(path: Path) -> bool:
    """Return whether a folder, or that of a file, has a whole model."""
    file = (path.parent if path.is_file() else path) / CONFIG
    return file.is_file() and whole_architecture(read_json(file)) is not None


def open_text(path: Path) -> Loaders:
    """Return one loader a tensor of the text model, under the names that it has by itself; of any other folder all tensors."""
    loaders = open_folder(path)
    if not is_whole(path):
        return loaders
    return {
        ours + name.removeprefix(theirs): load
        for name, load in loaders.items()
        for theirs, ours in _TEXT_NAMES.items()
        if name.startswith(theirs)
    }


def image_token_id(config: Mapping[str, Any]) -> int | None:
    """Return the id that stands in the places of media, under its key or the one of newer files; ``None`` where there is none."""
    found = config.get(IMAGE_TOKEN, config.get("image_token_id"))
    return None if found is None else int(found)


def whole_name(name: str) -> str:
    """Return the name that a text model's tensor has in the files of a whole model."""
    return f"language_model.{name}"
