"""The options that datasets of files share."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import Field

from mt_core.config.base import MtConfig
from mt_core.errors import DataError
from mt_core.files.paths import files_of

PINS = ("sha256", "sha1")
"""Options that say what the file of ``path`` has to hash to: another path has other bytes."""


class FileConfig(MtConfig):
    """Options of a dataset that reads files."""

    path: str = Field(min_length=1, description="file, folder or pattern such as 'data/*.jsonl'; .gz and .zst too")
    eval_path: str | None = Field(
        None, min_length=1, description="rows for evaluation, from another path; without it data.eval holds out rows"
    )
    sha256: str | None = Field(
        None, min_length=64, max_length=64, description="SHA-256 that the file of path must have"
    )
    sha1: str | None = Field(
        None,
        min_length=40,
        max_length=40,
        description="SHA-1 that the file of path must have, if only this is published",
    )

    def files(self, split: Literal["train", "eval"], *suffixes: str) -> list[Path] | None:
        """The files of a split; ``None`` where there is none. Raises ``DataError`` for a file with another hash."""
        if split == "eval":
            return None if self.eval_path is None else files_of(self.eval_path, *suffixes)
        files = files_of(self.path, *suffixes)
        for name, wanted in (("sha256", self.sha256), ("sha1", self.sha1)):
            if wanted is not None:
                _check_hash(files, name, wanted.lower())
        return files


def _check_hash(files: list[Path], name: str, wanted: str) -> None:
    if len(files) > 1:
        raise DataError(
            f"dataset.{name} is the hash of one file, and dataset.path means {len(files)}. Name one, or leave it out."
        )
    try:
        with files[0].open("rb") as file:
            got = hashlib.file_digest(file, name).hexdigest()
    except OSError as error:
        raise DataError(f"{files[0].absolute()} cannot be read: {error.strerror}. Check its permissions.") from error
    if got != wanted:
        raise DataError(
            f"{files[0].absolute()} has {name} {got}, and dataset.{name} asks for {wanted}. Fetch the file again, or correct the hash."
        )
