"""``plugins.lock.json`` of a run: read before its config, which nobody could resolve without its plugins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.checkpoint.tensors import read_json
from mt_core.config.files import read_config
from mt_core.errors import CheckpointError
from mt_core.plugins.lock import compared

LOCK_FILE = "plugins.lock.json"
RUN_FILE = "run.yaml"


def run_config(folder: Path) -> dict[str, Any]:
    """The content of ``run.yaml``. Raises ``CheckpointError`` with the ``pip install`` line when a plugin is missing."""
    check_lock(folder)
    return read_config(folder / RUN_FILE)


def check_lock(folder: Path) -> str:
    """What to know about code that is not the run's; nothing when all of it is. Raises ``CheckpointError`` as ``run_config``."""
    lock = read_lock(folder)
    return f"notice: {note}" if (note := compared(lock, f"the run {folder}")) else ""


def read_lock(folder: Path) -> dict[str, Any]:
    """The content of the lock; an empty one where there is no file. Raises ``CheckpointError`` for a damaged one."""
    path = folder / LOCK_FILE
    lock = read_json(path) if path.exists() else {"plugins": {}}
    if not isinstance(lock, dict) or not isinstance(lock.get("plugins"), dict) or not _is_whole(lock):
        raise CheckpointError(f"{path} does not list plugins and their versions; it is damaged: remove it")
    return lock


def _is_whole(lock: Mapping[str, Any]) -> bool:
    tables = [lock.get(key, {}) for key in ("plugins", "libraries", "sha256")]
    return all(isinstance(table, dict) and all(isinstance(text, str) for text in table.values()) for table in tables)
