"""Folders of whole models that see: a text model, an encoder and a projector under one ``config.json``. Families read the text model.

What the keys mean: ``configuration_llava.py``, ``configuration_qwen2_5_vl.py`` and ``configuration_qwen3_vl.py`` of
https://github.com/huggingface/transformers. Files have kept names that modules had before its release 4.52; both are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt_core.weights.files import Loaders, read_json
from mt_core.weights.folder import CONFIG, open_folder


@dataclass(frozen=True, kw_only=True)
class WholeType:
    """A class of models with several parts: its ``model_type``, and its text models.

    ``texts`` are the types that these have in it, and what their families call them. ``names`` says how names of text models begin in
    files that are written, and in a family. ``rope`` are rotary parameters that hold where the file says no others, ``theta`` their base.
    ``image_token`` is the key of the id that stands in the places of media, ``tokens`` those of ids of an encoder's options. Where
    they are ``flat``, files of earlier releases have the text model's keys beside the others. ``width`` is the key of ``vision_config``
    that says how wide hidden states are.
    """

    model_type: str
    texts: Mapping[str, str]
    names: Mapping[str, str]
    rope: Mapping[str, Any] = field(default_factory=dict)
    theta: float = 10_000.0
    flat: bool = False
    image_token: str = "image_token_id"  # noqa: S105 - a key
    tokens: Mapping[str, str] = field(default_factory=dict)
    width: str | None = None


_AROUND = {"vision_start_token_id": "begin", "vision_end_token_id": "end"}
WHOLE_TYPES: Mapping[str, WholeType] = {
    "LlavaForConditionalGeneration": WholeType(
        model_type="llava",
        texts={name: name for name in ("llama", "qwen2", "qwen3", "mistral")},
        names={"language_model.": ""},
        image_token="image_token_index",  # noqa: S106 - a key
    ),
    "Qwen2_5_VLForConditionalGeneration": WholeType(
        model_type="qwen2_5_vl",
        texts={"qwen2_5_vl_text": "qwen2"},
        names={"": ""},
        rope={"mrope_section": [16, 24, 24]},
        theta=1e6,
        flat=True,
        tokens=_AROUND,
        width="out_hidden_size",
    ),
    "Qwen3VLForConditionalGeneration": WholeType(
        model_type="qwen3_vl",
        texts={"qwen3_vl_text": "qwen3"},
        names={"model.language_model.": "model.", "lm_head.": "lm_head."},
        rope={"mrope_section": [24, 20, 20], "mrope_interleaved": True},
        theta=5e5,
        tokens=_AROUND,
        width="out_hidden_size",
    ),
}
"""Classes of transformers with several parts that can be read and written."""
_TEXT_NAMES: Mapping[str, str] = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    **{name: name for name in ("lm_head.", "model.embed_tokens.", "model.layers.", "model.norm.")},
}
"""How names of the text model begin in files and in modules, and in a family."""
_SHARED = ("tie_word_embeddings", "quantization_config")
"""Keys that hold for the text model where they stand outside of it."""
_OF_THE_WHOLE = ("architectures", "model_type", "vision_config")
"""Keys that are not the text model's in a flat file."""


def whole_architecture(config: Mapping[str, Any]) -> str | None:
    """Return the class of a model with several parts whose text model a family can read; ``None`` for any other ``config.json``."""
    stated = config.get("architectures") or [config.get("model_type")]
    if not isinstance(stated, list):
        return None  # a family that reads the config says what is wrong with it
    found = next((name for name, kind in WHOLE_TYPES.items() if name in stated or kind.model_type in stated), None)
    return None if found is None or _text(config, WHOLE_TYPES[found]) is None else found


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the text model: a part of the ``config.json`` of a model with several parts, else the whole."""
    found = whole_architecture(config)
    if found is None:
        return config
    kind = WHOLE_TYPES[found]
    text = dict(_text(config, kind) or {})
    if kind.rope:
        key = "rope_scaling" if text.get("rope_scaling") else "rope_parameters"
        text = {"rope_theta": kind.theta, **text, key: {**kind.rope, **(text.get(key) or {})}}
    shared = {key: config[key] for key in _SHARED if config.get(key)}
    return {**text, "model_type": kind.texts[text["model_type"]], **shared}


def _text(config: Mapping[str, Any], kind: WholeType) -> dict[str, Any] | None:
    """The text model's own keys, its type among them; ``None`` for one that is not read."""
    text = config.get("text_config")
    if text is None and kind.flat:
        text = {key: value for key, value in config.items() if key not in _OF_THE_WHOLE}
    if not isinstance(text, dict):
        return None
    text = {"model_type": next(iter(kind.texts)), **text}
    return text if text["model_type"] in kind.texts else None


def is_whole(path: Path, architecture: str | None = None) -> bool:
    """Return whether a folder, or a file's folder, has a model with several parts, of the given class if one is given."""
    file = (path.parent if path.is_file() else path) / CONFIG
    found = whole_architecture(read_json(file)) if file.is_file() else None
    return found is not None and architecture in (None, found)


def open_text(path: Path) -> Loaders:
    """Return a loader for each tensor of the text model, under its own names; for any other folder, all tensors."""
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
    """Return the token id of media places, under its old or new key; ``None`` if there is none."""
    found = config.get("image_token_index", config.get("image_token_id"))
    return None if found is None else int(found)


def whole_name(name: str, architecture: str) -> str:
    """Return the name of a text model's tensor in the files of a model of this class."""
    names = WHOLE_TYPES[architecture].names
    return next(theirs + name.removeprefix(ours) for theirs, ours in names.items() if name.startswith(ours))
