"""Tokens of a whole model's folder that have to do with images: what stands in their places, and around them. Torch is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.weights import image_token_id, read_json

AROUND: Mapping[str, str] = {"begin": "vision_start_token_id", "end": "vision_end_token_id"}
"""Our option → the key of the token that it is, where whole models have one."""


def read_tokens(said: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return ``token``, ``begin`` and ``end``, as far as ``config.json`` says their ids and the folder's tokenizer has added them."""
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        return {}
    added = {each.get("id"): each["content"] for each in read_json(tokenizer).get("added_tokens") or []}
    ids = {"token": image_token_id(said), **{ours: said.get(theirs) for ours, theirs in AROUND.items()}}
    return {ours: added[number] for ours, number in ids.items() if number in added}
