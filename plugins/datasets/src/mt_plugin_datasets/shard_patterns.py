"""Shards that a path stands for."""

from __future__ import annotations

from os.path import exists, expanduser
from pathlib import Path
from typing import Literal

from mt_core import DataError
from mt_core.files import FileConfig, files_of, is_remote

from .braces import expand_braces


def shards_of(config: FileConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The shards of a split, in the order of the pattern; behind an address by name. Raises ``DataError`` for one that is not there."""
    named = config.path if split == "train" else config.eval_path
    if named is None or is_remote(named) or exists(expanduser(named)) or (each := expand_braces(named)) == [named]:
        return config.files(split, ".tar")
    if len(each) == 1:
        option = "path" if split == "train" else "eval_path"
        return config.model_copy(update={option: each[0]}).files(split, ".tar")
    if split == "train" and (config.sha256 or config.sha1):
        raise DataError(
            f"dataset.path={named} means {len(each)} files, and dataset.sha256 and sha1 are of one. Leave them out"
        )
    return list(dict.fromkeys(path for pattern in each for path in files_of(pattern, ".tar")))
