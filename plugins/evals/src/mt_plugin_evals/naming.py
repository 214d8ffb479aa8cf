"""Datasets and metrics as options name them: ``{name: NAME, OPTION: VALUE, …}``."""

from __future__ import annotations

from typing import Any


def named_dataset(given: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the options of a dataset. Raises ``ValueError`` where there is neither its name nor a path, from which it follows."""
    if not isinstance(given.get("name", ""), str) or not (given.get("name") or given.get("path")):
        raise ValueError(
            f"{key} has no name of a dataset, and no path; write {{path: rows.jsonl}} or {{name: NAME, …}}, or --….{key}.path rows.jsonl"
        )
    return given
