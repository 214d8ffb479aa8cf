"""The cache of remote files on disk: folders that processes read together, under locks (flock), and that go where room is needed."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mt_core import DataError

_GIB = 1 << 30
_SIZE = "MT_REMOTE_CACHE_GIB"
_HELD: dict[Path, int] = {}
"""Handles that share the locks of folders which this process reads."""


def hold_folder(folder: Path) -> None:
    """Share the lock of a folder for as long as this process lives, and mark it as used now."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".lock")
    if folder not in _HELD:
        import fcntl

        while True:
            handle = _open(path)
            fcntl.flock(handle, fcntl.LOCK_SH)
            if _is_at(path, handle):
                break
            os.close(handle)  # who removed the folder has removed its lock, for which this one waited
        _HELD[folder] = handle
        folder.mkdir(exist_ok=True)  # it may have been removed while this waited
    os.utime(path)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _is_at(path: Path, handle: int) -> bool:
    """Return whether a lock that is held is the one that others find at its path."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file alone, once no other process holds it."""
    import fcntl  # here: Windows has none

    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def make_room(root: Path, needed: int, url: str) -> None:
    """Remove folders that nobody reads until the files fit. Raises ``DataError`` where they never will."""
    if not needed:
        return
    try:
        limit = int(float(os.environ.get(_SIZE) or 100) * _GIB)
    except ValueError as error:
        raise DataError(f"{_SIZE}={os.environ[_SIZE]} is no number. Set it to the size of the cache in GiB") from error
    with lock(root / "room.lock"):
        sizes = {path: _size(path) for path in root.iterdir() if path.is_dir()}
        used = sum(sizes.values())
        for folder in sorted(sizes, key=_last_use):
            if used + needed <= limit and shutil.disk_usage(root).free >= needed:
                break
            if sizes[folder] and remove_folder(folder):
                used -= sizes[folder]
        if used + needed > limit or shutil.disk_usage(root).free < needed:
            raise DataError(
                f"{url} needs {needed / _GIB:.3g} GiB in {root}, where {used / _GIB:.3g} GiB are in use, {limit / _GIB:.3g} GiB are allowed"
                f" and {shutil.disk_usage(root).free / _GIB:.3g} GiB are free. Raise {_SIZE}, make room, or set MT_CACHE to another folder"
            )


def _last_use(folder: Path) -> float:
    """Return when a process began to read a folder; one without a lock is just being made."""
    try:
        return folder.with_suffix(".lock").stat().st_mtime
    except FileNotFoundError:
        return math.inf


def _size(folder: Path) -> int:
    """Return the bytes of a folder, in which other processes may fetch, and so rename, files just now."""
    size = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def remove_folder(folder: Path) -> bool:
    """Remove a folder of the cache, which may be gone, and its lock; ``False`` where a process reads it."""
    import fcntl

    path = folder.with_suffix(".lock")
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(path, handle):
            return False  # another process has just removed it, and somebody may read a new one
        if folder.is_dir():
            shutil.rmtree(folder)
        path.unlink()
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
