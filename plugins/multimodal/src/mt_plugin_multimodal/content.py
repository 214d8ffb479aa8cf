"""Content of parts: read from a file that may be anything, or already there. Torch is not imported."""

from __future__ import annotations

import hashlib
import os
import stat

from mt_core import DataError, first_line

MOST_BYTES = 64 * 2**20
"""Bytes of the largest file that is read."""


def read_content(path: str, content: bytes, place: str, most: int = MOST_BYTES, *, option: str = "") -> bytes:
    """Return the bytes of a file, or those that are there. Raises ``DataError`` for what is no regular file, or too large.

    A pipe is not waited for. ``option`` is the one that says ``most``, where there is one.
    """
    if not path:
        return content
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{place}: {path} is no regular file; give the path of one, or leave the row out")
            found = file.read(most + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise DataError(f"{place}: cannot read {path}: {why}; put the file there, or leave the row out") from error
    if len(found) > most:
        limit, instead = (f"{option}={most:,}", "raise it") if option else (f"{most:,}", "leave the row out")
        raise DataError(f"{place}: {path} is larger than {limit} bytes; store a smaller file, or {instead}")
    return found


def digest_of(content: bytes) -> bytes:
    """Return 8 bytes that tell one content from another."""
    return hashlib.sha256(content).digest()[:8]


def require_same(content: bytes, digest: bytes, place: str) -> None:
    """Raise ``DataError`` for another content than was measured; ``digest`` is empty where nothing was."""
    if digest and digest_of(content) != digest:
        raise DataError(
            f"{place} is another content than when the rows were encoded; put the old one back, or encode the rows anew"
        )
