"""Names of files and options that are the same wherever the files lie: in another folder, on another machine, behind an address."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from os.path import expanduser
from pathlib import Path, PurePosixPath
from typing import Any

from mt_core.config.base import MtConfig
from mt_core.files import is_remote
from mt_train.checkpoint.store import FOLDER
from mt_train.plugins.hub import folder_of

_BRACES = re.compile(r"\{[^{}]*(?:\.\.|,)[^{}]*\}")
"""Part of a pattern of files that some datasets have: ``{00..12}``, ``{a,b}``."""
_VERSION = re.compile(r"[0-9a-f]{16}-(?=.)")
"""Prefix of a copy of a file behind an address, before the file's own name."""


def files_in_options(options: MtConfig) -> Iterator[tuple[str, Path]]:
    """Yield what a tokenizer was read from, with names that are the same wherever it lies: files that options name, those beside them
    that begin with their name; all files of folders, but for a run's checkpoints, from which no tokens follow."""
    for value in _texts(options.model_dump(mode="json")):
        if exists(value):
            path = Path(expanduser(value))
            near = path.rglob("*") if path.is_dir() else path.parent.glob(f"{glob.escape(path.stem)}*")
            folder, saved = folder_of(path), path / FOLDER if (path / "run.yaml").is_file() else None
            files = (child for child in sorted(near) if child.is_file() and saved not in child.parents)
            yield from ((child.relative_to(folder).as_posix(), child) for child in files)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def exists(value: str) -> bool:
    """Return whether an option is the path of something on this machine."""
    return value != "" and "\0" not in value and os.path.exists(expanduser(value))


def stands_for_rows(value: str) -> bool:
    """Return whether an option of a dataset stands for files: one that exists, an address, or a pattern of some."""
    pattern = _BRACES.sub("*", value)
    return exists(value) or is_remote(value) or (glob.has_magic(pattern) and _matches(pattern))


def _matches(pattern: str) -> bool:
    return "\0" not in pattern and next(glob.iglob(expanduser(pattern), recursive=True), None) is not None


def without_places(value: Any, stands_for_files: Callable[[str], bool], key: str = "") -> Any:
    """Return options as they are on any machine: without where files lie whose names and hashes stand beside the options. Of a place
    under a key that does not end in ``path`` the last name is kept, since it may be a word that a file has for a name."""
    if isinstance(value, dict):
        return {name: without_places(each, stands_for_files, name) for name, each in value.items()}
    if isinstance(value, list):
        return [without_places(each, stands_for_files, key) for each in value]
    if not isinstance(value, str) or not stands_for_files(value):
        return value
    return "files" if key.endswith("path") else PurePosixPath(value).name


def name_files(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Return files with their names below the folder that they share: the same for the same files in another place, also for a copy
    of what is behind an address, whose name begins with its version."""
    if not paths:
        return []
    folder = os.path.commonpath([path.absolute().parent for path in paths])
    within = [Path(os.path.relpath(path.absolute(), folder)) for path in paths]
    return [
        (name.with_name(_VERSION.sub("", name.name)).as_posix(), path) for name, path in zip(within, paths, strict=True)
    ]
