"""Files in a run's folder, opened as they are: a folder may come from somebody else, with links that lead anywhere."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)  # Windows has but the last


def open_plain(path: Path) -> BinaryIO | None:
    """Open a regular file for reading; ``None`` where there is none, or a link or a pipe in its place."""
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return None
        raise
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    return None


def read_plain(path: Path) -> str | None:
    """Return the text of a file as ``open_plain`` opens it, whatever its bytes are."""
    file = open_plain(path)
    if file is None:
        return None
    with file:
        return file.read().decode("utf-8", errors="replace")


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file, whatever its bytes are; none of one that is missing."""
    file = open_plain(path)
    if file is not None:
        with file:
            yield from (line.decode("utf-8", errors="replace") for line in file)
