"""Stamps of files, by which a run tells that one changed. As git does, this trusts the file system."""

from __future__ import annotations

import time
from pathlib import Path

_SETTLED_SECONDS = 2.0
"""A file that changed later than so long ago may change again within the resolution of its time, so its hash is not remembered."""


def stamp_of(path: Path) -> tuple[str | int, ...]:
    """Return the place of a file, its size, times, inode and device. Raises ``OSError``."""
    now = path.stat()
    return str(path.absolute()), now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_dev


def is_settled(path: Path, stamp: tuple[str | int, ...]) -> bool:
    """Return whether a file is what it was at ``stamp``, and would have another one after any change. Raises ``OSError``."""
    return time.time() - path.stat().st_mtime > _SETTLED_SECONDS and stamp_of(path) == stamp
