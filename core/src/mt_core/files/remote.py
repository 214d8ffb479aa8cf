"""Files behind addresses (``s3://bucket/rows.jsonl``): a distribution fetches them, found through the entry point ``mt_core.storage``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Protocol

from mt_core.errors import DataError

GROUP = "mt_core.storage"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class RemoteFile(Protocol):
    """One version of a file behind an address; ``size`` is in bytes."""

    @property
    def size(self) -> int: ...


class Storage(Protocol):
    """Fetches files behind addresses. Each method raises ``DataError`` for an address that is not served."""

    def remote_files(self, url: str, *suffixes: str, root: Path) -> list[Path]:
        """Copies below ``root`` of what an address stands for, as ``files_of`` says of paths."""

    def files_below(self, url: str) -> dict[str, RemoteFile]:
        """Path below an address → file, without fetching any."""

    def fetch(self, file: RemoteFile, place: Path) -> None:
        """Copy a file to ``place``, once among all processes of a machine."""

    def forget_remote(self) -> None:
        """Look anew at what addresses stand for, as each run does when it begins."""


def is_remote(path: str) -> bool:
    """Return whether this is an address (``s3://bucket/rows.jsonl``) rather than a path."""
    return _ADDRESS.match(path) is not None


@cache
def storage() -> Storage:
    """Return the module that reads addresses. Raises ``DataError`` if none is installed."""
    from importlib.metadata import entry_points  # here: most runs have no address, and importing it takes a while

    for point in entry_points(group=GROUP):
        found: Storage = point.load()
        return found
    raise DataError(
        "addresses are served by mt-plugin-datasets, which is not installed: pip install mt-plugin-datasets"
    )


def forget_remote() -> None:
    """Forget the cached versions of remote files, so that addresses are looked up again."""
    if storage.cache_info().currsize:
        storage().forget_remote()
