"""Names for paths: ``@data/train.jsonl`` is ``train.jsonl`` in the folder that a file of names calls ``data``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from os.path import expanduser
from pathlib import Path
from typing import Any

from mt_core.errors import UsageError, did_you_mean
from mt_train.config.files import read_config

VARIABLE = "MT_PATHS"
_NAMED = re.compile(r"@([A-Za-z0-9_][A-Za-z0-9_-]*)(/.*)?", re.DOTALL)


def names_file() -> Path:
    """Return where names are looked up: ``MT_PATHS``, else ``~/.config/mt/paths.yaml``."""
    return Path(expanduser(os.environ.get(VARIABLE) or "~/.config/mt/paths.yaml"))


def expand(value: Any) -> Any:
    """Return the value with every ``@name`` or ``@name/rest`` in it replaced; ``@@`` at the start stands for a plain ``@``.

    Raises ``UsageError`` that lists the known names for an unknown one.
    """
    if isinstance(value, Mapping):
        return {key: expand(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand(item) for item in value]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        return value
    if value.startswith("@@"):
        return value[1:]
    match = _NAMED.fullmatch(value)
    return _path(match[1]) + (match[2] or "") if match else value


def _path(name: str) -> str:
    source = names_file()
    if source.is_dir():
        raise UsageError(
            f"@{name} is a name for a path, and {source} is a folder; set {VARIABLE} to the YAML file of names in it"
        )
    if not source.is_file():
        raise UsageError(
            f"@{name} is a name for a path, and there are no names: write 'NAME: /some/folder' into {source}, or set"
            f" {VARIABLE} to another file; text that begins with @ is written @@"
        )
    known = read_config(source)
    key = name.replace("-", "_")
    if key not in known:
        listed = ", ".join(f"@{each}" for each in known) or "none"
        raise UsageError(f"no path is named @{name} in {source}. {did_you_mean(key, list(known))}Known: {listed}")
    if not isinstance(known[key], str):
        raise UsageError(f"{source}: {name} is {known[key]!r}; a path is text")
    return str(Path(expanduser(known[key])))
