"""Pruning of the token cache: keys that nobody has used for long, and what runs that were killed left behind."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mt_core.errors import DataError
from mt_train.data.cache_folder import building_of, is_complete
from mt_train.data.cache_index import FINGERPRINT, HASHES, KNOWN, META, PLAN
from mt_train.data.columns import is_column
from mt_train.data.locks import claim, lock_of

REFERENCES = "reference"
"""Folder beside the keys: what models of step 0 gave rows (``assemble/reference.py``), a file under a hash of both."""
_REFERENCE = re.compile(r"(\.tmp-)?[0-9a-f]{40}\.safetensors")
_KEY = re.compile(r"[0-9a-f]{40}")
_OTHERS = frozenset({META, HASHES, KNOWN, FINGERPRINT, PLAN})
_CHUNK = re.compile(r"(\.tmp-\d+-)?(chunk-\d+(\.npz|\.lease)?|plan\.json|fingerprint)")
"""Chunks, with their leases; ``.npz``, and columns in a file each, are of caches from before chunks stayed as they are."""


@dataclass(frozen=True)
class StaleKey:
    """Everything of one key."""

    folder: Path
    size: int
    """Bytes."""
    idle_seconds: float
    """Since a file of it was written, or the rows used."""
    is_whole: bool
    """False for what was never finished."""

    def remove(self) -> bool:
        """Remove it, unless a process makes it or uses its rows. Raises ``DataError`` when that fails."""
        try:
            lock = claim(lock_of(self.folder))
            if lock is None:
                return False
            try:
                (self.folder / META).unlink(missing_ok=True)  # first: without it the rest counts for nothing
                for path in (self.folder, building_of(self.folder)):
                    if path.exists():
                        shutil.rmtree(path)
                lock_of(self.folder).unlink()
            finally:
                os.close(lock)
        except OSError as error:
            raise DataError(
                f"{error.filename or self.folder} cannot be removed: {error.strerror}. Run it as who owns the folder, or remove"
                f" {self.folder}* by hand"
            ) from error
        return True

    @property
    def is_used(self) -> bool:
        """Return whether a process makes it, or uses its rows."""
        lock = lock_of(self.folder)
        if not lock.exists():
            return False
        try:
            handle = claim(lock)
        except OSError:  # what it is can be said, if not whether it may be removed
            return False
        if handle is not None:
            os.close(handle)
        return handle is None


def find_stale_keys(root: Path) -> list[StaleKey]:
    """Every key of a cache, the one that was used last at the end. What no token cache holds is passed over with its folder.

    Raises ``DataError`` for a folder that cannot be read.
    """
    try:
        names = {name for path in root.iterdir() if _KEY.fullmatch(name := path.name.partition(".")[0])}
        found = [_inspect(root / name) for name in names]
    except OSError as error:
        raise DataError(f"{error.filename or root} cannot be read: {error.strerror}. Check its permissions") from error
    return sorted(filter(None, found), key=lambda each: (-each.idle_seconds, each.folder))


def stale_references(root: Path, seconds: float) -> tuple[int, list[Path]]:
    """Return how many files of references there are, and those that were not used for so many seconds.

    Raises ``DataError`` for a folder that cannot be read.
    """
    folder = root / REFERENCES
    if folder.is_symlink() or not folder.is_dir():
        return 0, []
    try:
        found = [
            (path, path.stat().st_mtime)
            for path in sorted(folder.iterdir())
            if _REFERENCE.fullmatch(path.name) and path.is_file() and not path.is_symlink()
        ]
    except OSError as error:
        raise DataError(
            f"{error.filename or folder} cannot be read: {error.strerror}. Check its permissions"
        ) from error
    return len(found), [path for path, used in found if time.time() - used >= seconds]


def _inspect(folder: Path) -> StaleKey | None:
    try:
        return _stale_key(folder)
    except FileNotFoundError:  # somebody makes or removes it just now
        return None


def _stale_key(folder: Path) -> StaleKey | None:
    building, lock = building_of(folder), lock_of(folder)
    if not (_holds(folder, _is_column) and _holds(building, _is_chunk) and _holds(building / "whole", _is_column)):
        return None
    if lock.is_symlink() or (lock.exists() and lock.stat().st_size):
        return None
    stats = [path.stat() for path in (*_below(folder), *_below(building), lock) if path.exists()]
    latest = max((each.st_mtime for each in stats), default=0.0)
    return StaleKey(folder, sum(each.st_size for each in stats), time.time() - latest, is_complete(folder))


def _holds(folder: Path, allowed: Callable[[Path], bool]) -> bool:
    """Return whether there is no such folder, or a true one with nothing else in it."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return False
    return not folder.exists() or all(allowed(path) for path in folder.iterdir())


def _is_column(path: Path) -> bool:
    known = path.name in _OTHERS or is_column(path.name) or _CHUNK.fullmatch(path.name) is not None
    return known and path.is_file() and not path.is_symlink()


def _is_chunk(path: Path) -> bool:
    return path.name == "whole" or _is_column(path)


def _below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
