"""Whole models that see, in a run: the encoder of one that ``mt_core.weights`` reads, and why another is refused. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core.errors import MtError, UsageError, WeightsError
from mt_core.media import EncoderComponent
from mt_core.plugins.host import PluginHost
from mt_core.weights import CONFIG, WHOLE_TYPES, is_whole, read_json, whole_architecture

MODEL = "model"
"""``weights`` of an encoder that are in the folder of ``model.weights``."""

_VISION = "its vision tower is not here (those of Qwen2.5-VL and Qwen3-VL are)"
_MIXTURE = "its text model is a mixture of experts, whose files are not read with an encoder (dense ones are)"
_TILES = "it cuts images into tiles"
_BOTH_WAYS = "its tokens of an image see one another in both directions"
_REASONS: Mapping[str, str] = {
    "Qwen2VL": _VISION,
    "Qwen2_5Omni": _VISION,
    "Qwen3VLMoe": _MIXTURE,
    "Qwen3_5": _VISION,
    "Glm4v": _VISION,
    "Gemma3": _BOTH_WAYS,
    "PaliGemma": _BOTH_WAYS,
    "Mllama": "its images enter through blocks of cross-attention",
    "LlavaNext": _TILES,
    "LlavaOnevision": _TILES,
    "InternVL": _TILES,
    "Idefics": _TILES,
}
"""How the names of classes begin → why the model is not read with its encoder."""


def refuse_unread(path: Path, key: str) -> None:
    """Raise ``WeightsError`` for a whole model that is not read with its encoder, where an option names it so."""
    config = (path.parent if path.is_file() else path) / CONFIG
    said = read_json(config) if config.is_file() else {}
    if "vision_config" not in said or "text_config" not in said or whole_architecture(said) is not None:
        return
    stated = [str(name) for name in said.get("architectures") or ()]
    raise WeightsError(
        f"{key} names {path}, which is {', '.join(stated) or 'another model'}, and is not read with its encoder: {_why_unread(stated)}."
        " Train its text model with an encoder of other weights, or take a LLaVA, a Qwen2.5-VL or a Qwen3-VL"
    )


def _why_unread(architectures: Sequence[str]) -> str:
    """Return the reason of a whole model, or else which are read."""
    reasons = (why for begin, why in _REASONS.items() if any(name.startswith(begin) for name in architectures))
    return next(
        reasons,
        "whole models are read of "
        + ", ".join(f"{name} (text models {', '.join(each.texts)})" for name, each in WHOLE_TYPES.items()),
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
                return {component.name: {"weights": MODEL}}
    told = "; ".join(f"{name}: {fault}" for name, fault in faults.items()) or "none is installed"
    raise UsageError(
        f"{path} is a whole model that sees, and no encoder here reads its own ({told}). Install one: pip install mt-plugin-multimodal"
    )
