"""Files of a folder that have others beside them, which they name: ``index.json`` and shards, ``.idx`` and ids."""

from __future__ import annotations

import os
from collections.abc import Callable
from os.path import expanduser, isdir
from pathlib import Path
from typing import Literal, NoReturn

from mt_core import DataError
from mt_core.files import FileConfig


def named_files(
    config: FileConfig, split: Literal["train", "eval"], suffix: str, is_wanted: Callable[[str], bool]
) -> list[Path] | None:
    """Return the files of a split. Of a folder they are those with a wanted name, one by one: of the folder as such it would be said that
    the files beside them are not read."""
    option = "path" if split == "train" else "eval_path"
    named = getattr(config, option)
    below = _files_below(expanduser(named), is_wanted) if named is not None else []
    configs = [config.model_copy(update={option: str(path)}) for path in below] or [config]
    files = [each.files(split, suffix) for each in configs]
    return None if None in files else [path for each in files for path in each or ()]


def _files_below(folder: str, is_wanted: Callable[[str], bool]) -> list[Path]:
    """Every wanted file of a folder and of those below, sorted; none where it is no folder."""

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}. Check the folder") from error

    # not Path.is_dir, which fails for a name that is too long
    below = os.walk(folder, onerror=refuse) if isdir(folder) else ()
    return sorted(Path(root, name) for root, _, names in below for name in names if is_wanted(name))
