"""Whole models that see, by what their ``config.json`` says: which are read as one, and the encoder of one. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.errors import MtError, UsageError, WeightsError
from mt_core.media import EncoderComponent
from mt_core.plugins.host import PluginHost
from mt_core.weights import CONFIG, is_whole, read_json, whole_architecture

_ROTARY = "its places of images have three positions each (M-RoPE)"
_TILES = "it cuts images into tiles"
_BOTH_WAYS = "its tokens of an image see one another in both directions"
_REASONS: Mapping[str, str] = {
    "Qwen2VL": _ROTARY,
    "Qwen2_5_VL": _ROTARY,
    "Qwen2_5Omni": _ROTARY,
    "Qwen3VL": f"{_ROTARY}, and features enter its first blocks, too",
    "Glm4v": _ROTARY,
    "Gemma3": _BOTH_WAYS,
    "PaliGemma": _BOTH_WAYS,
    "Mllama": "its images enter through blocks of cross-attention",
    "LlavaNext": _TILES,
    "LlavaOnevision": _TILES,
    "InternVL": _TILES,
    "Idefics": _TILES,
}
"""How the names of classes begin → why the model is not read with its encoder."""


def why_unread(config: Path) -> str:
    """Return why the whole model of a ``config.json`` is not read with its encoder; empty for one that is, or that does not see."""
    said = read_json(config)
    if "vision_config" not in said or "text_config" not in said or whole_architecture(said) is not None:
        return ""
    stated = [str(name) for name in said.get("architectures") or ()]
    found = next((why for begin, why in _REASONS.items() if any(name.startswith(begin) for name in stated)), None)
    return (
        found
        or "whole models are read of LlavaForConditionalGeneration with the text models llama, qwen2, qwen3, mistral"
    )


def refuse_unread(path: Path, key: str) -> None:
    """Raise ``WeightsError`` for a whole model that is not read with its encoder, where an option names it so."""
    config = (path.parent if path.is_file() else path) / CONFIG
    if config.is_file() and (why := why_unread(config)):
        name = ", ".join(map(str, read_json(config).get("architectures") or ["another model"]))
        raise WeightsError(
            f"{key} names {path}, which is {name}, and is not read with its encoder: {why}. Train its text model with an encoder of other"
            " weights, or take a LLaVA"
        )


def encoders_of(path: Path, host: PluginHost) -> dict[str, Any]:
    """Return the encoder of a whole model as a run names it; none for other folders. Raises ``UsageError`` where none reads it."""
    if not is_whole(path):
        return {}
    faults: dict[str, str] = {}
    for offer in host.offers("encoder"):
        component = offer.component
        assert isinstance(component, EncoderComponent), "the host checks what mt_encoders returns"
        for form in component.formats:
            if not form.matches(path):
                continue
            try:
                form.values(path)
            except MtError as error:
                faults[component.name] = str(error)
            else:
                return {component.name: {"weights": "model"}}
    told = "; ".join(f"{name}: {fault}" for name, fault in faults.items()) or "none is installed"
    raise UsageError(
        f"{path} is a whole model that sees, and no encoder here reads its own ({told}). Install one: pip install mt-plugin-multimodal"
    )
