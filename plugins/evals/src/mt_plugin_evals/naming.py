"""Datasets and metrics as options name them: ``{name: NAME, OPTION: VALUE, …}``."""

from __future__ import annotations

from typing import Any


def named_dataset(given: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the options of a dataset. Raises ``ValueError`` where its name is missing."""
    if not isinstance(given.get("name"), str):
        raise ValueError(f"{key} has no name of a dataset; write {{name: jsonl, path: …}}, or --….{key}.name jsonl")
    return given
