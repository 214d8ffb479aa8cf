"""Hashes of source files, remembered beside the token cache: a file is read again only when it seems to have changed. Imports no torch."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mt_core.errors import DataError
from mt_train.checkpoint.files import replace_text, sha256
from mt_train.data.file_stamps import is_settled, stamp_of

MEMORY = "hashes"
"""Folder beside the keys: SHA-256 of each source file, and its path, under a name that is made of what tells that it changed."""
_NAME = re.compile(r"[0-9a-f]{40}")


def hash_files(named: Iterable[tuple[str, Path]], memory: Path) -> list[tuple[str, str]]:
    """Return the names of files with the SHA-256 of each."""
    return [(name, file_hash(path, memory)) for name, path in named]


def file_hash(path: Path, memory: Path) -> str:
    """SHA-256 of a file, read again only when its path, size, time of change or inode are others than they were.

    As git does, this trusts the file system to tell that a file changed.
    """
    stamp = stamp_of(path)
    known = memory / hashlib.sha256(repr(stamp).encode()).hexdigest()[:40]
    if known.is_file() and len(text := known.read_text(encoding="utf-8", errors="replace").partition("\n")[0]) == 64:
        with suppress(OSError):  # the cache of somebody else
            os.utime(known)  # that it is used: `mt-data clean` asks
        return text
    digest = sha256(path)
    if is_settled(path, stamp):
        with suppress(OSError):  # it is hashed again then; whether tokens can be kept there shows when they are
            memory.mkdir(parents=True, exist_ok=True)
            replace_text(known, f"{digest}\n{str(path.absolute())!a}\n")  # a path may have any bytes
    return digest


def old_hashes(root: Path, seconds: float) -> tuple[int, list[Path]]:
    """Return how many hashes of source files a cache remembers, and those of files that are gone, or not asked for so long.

    Raises ``DataError`` for a folder that cannot be read.
    """
    folder, latest = root / MEMORY, time.time() - seconds
    try:
        if folder.is_symlink() or not folder.is_dir():
            return 0, []
        own = [
            path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink()
        ]
        return len(own), sorted(path for path in own if path.stat().st_mtime <= latest or _is_gone(path))
    except OSError as error:
        raise DataError(
            f"{error.filename or folder} cannot be read: {error.strerror}. Check its permissions"
        ) from error


def _is_gone(memory: Path) -> bool:
    """Return whether the file whose hash this is does not exist any more; those of older versions do not say which it was."""
    _, _, path = memory.read_text(encoding="utf-8", errors="replace").partition("\n")
    try:
        return bool(path.strip()) and not Path(ast.literal_eval(path.strip())).exists()
    except (ValueError, SyntaxError):
        return True  # no file that this program wrote
