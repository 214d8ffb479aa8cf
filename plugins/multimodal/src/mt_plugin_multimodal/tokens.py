"""Tokens of a whole model's folder that have to do with images: what stands in their places, and around them. Torch is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.weights import WHOLE_TYPES, image_token_id, read_json, whole_architecture


def read_tokens(said: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return ``token``, and for models that have them ``begin`` and ``end``, where the folder's tokenizer has added tokens of these ids."""
    tokenizer, architecture = folder / "tokenizer.json", whole_architecture(said)
    if not tokenizer.is_file():
        return {}
    around = {} if architecture is None else WHOLE_TYPES[architecture].tokens
    added = {each.get("id"): each["content"] for each in read_json(tokenizer).get("added_tokens") or []}
    ids = {"token": image_token_id(said), **{ours: said.get(theirs) for theirs, ours in around.items()}}
    return {ours: added[number] for ours, number in ids.items() if number in added}
