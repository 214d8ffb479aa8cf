"""``plugins.lock.json`` of a run: read before its config, which nobody could resolve without its plugins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.errors import CheckpointError
from mt_core.files.strict_json import parse_json
from mt_core.plugins.pins import FOLDER, UNKNOWN, unfit_origin, unfit_reason

LOCK_FILE = "plugins.lock.json"
RUN_FILE = "run.yaml"
_MOST = 1000
"""Distributions of one run."""


def read_lock(folder: Path) -> dict[str, Any]:
    """The content of the lock; an empty one where there is no file. Raises ``CheckpointError`` for a damaged one.

    Lines for pip are made of what it says (``plugins/pins.py``): a name or version that is none refuses it whole.
    """
    path = folder / LOCK_FILE
    lock = _read(path) if path.exists() else {"plugins": {}}
    if not isinstance(lock, dict) or not isinstance(lock.get("plugins"), dict) or not _is_whole(lock):
        raise CheckpointError(f"{path} does not list plugins and their versions; it is damaged: remove it")
    for key in ("plugins", "libraries", "sha256"):
        table = lock.get(key, {})
        if found := unfit_reason(table if key != "sha256" else dict.fromkeys(table, UNKNOWN)):
            raise CheckpointError(
                f"{path} has in {key!r} what names no distribution or no version of one: {found}. mt-train writes no such file:"
                " do not install what it asks for, and remove it"
            )
    if found := unfit_reason(dict.fromkeys(lock.get("editable", []), UNKNOWN)) or unfit_origin(lock.get("origins", {})):
        raise CheckpointError(
            f"{path} says where a distribution came from in a way that mt-train does not: {found}; remove it"
        )
    return lock


def _read(path: Path) -> Any:
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path} is not a regular file; remove it or choose another folder")
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; the file is missing or damaged") from error


def _is_whole(lock: Mapping[str, Any]) -> bool:
    """Return whether the tables are tables of texts, of a length that a machine may have installed."""
    tables = [lock.get(key, {}) for key in ("plugins", "libraries", "sha256", "origins")]
    editable = lock.get("editable", [])
    if not isinstance(editable, list) or not all(isinstance(name, str) for name in editable):
        return False
    return all(
        isinstance(table, dict) and len(table) <= _MOST and all(isinstance(text, str) for text in table.values())
        for table in tables
    )


def origins(lock: Mapping[str, Any]) -> dict[str, str]:
    """Return where its distributions came from that are from no index. Older locks know of folders that were worked on."""
    return {**dict.fromkeys(lock.get("editable", []), FOLDER), **lock.get("origins", {})}
