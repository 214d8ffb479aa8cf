"""Files that are written in a folder which may come from somebody else: never through a link, and whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str, flags: int) -> int:
    """An ``opener`` for files that a run appends to: it follows no link, and does not block on a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def open_new(path: str, flags: int) -> int:
    """An ``opener`` for a file that must not be there: whatever has its name, a link to nowhere too, is an ``OSError``."""
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextmanager
def replace_file(path: Path, *, durable: bool = False, by_many: bool = False) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` when the block ends: after a crash the old or the new file is there, complete.

    A link at ``path`` is replaced, and not what it leads to. ``durable``: it is on the disk when this returns. ``by_many``: several
    processes may write it at a time, and one of theirs stays. Raises ``OSError``.
    """
    stage_folder = path.with_name(f".tmp-{os.getpid()}-{path.name}" if by_many else f".tmp-{path.name}")
    stage_folder.unlink(missing_ok=True)
    try:
        with open(stage_folder, "wb", opener=open_new) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(stage_folder, path)
    except BaseException:
        stage_folder.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Return once the file's content, or the folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> Path:
    """Create one folder if it does not exist. A link in its place is an ``OSError``, wherever it leads."""
    path.mkdir(exist_ok=True)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "a link stands in the place of a folder", str(path))
    return path
