"""Small files that somebody names: read whole, up to a bound, and never waited for without end.

A path may be a pipe that nobody writes into, or a device that never ends. Faults are ``OSError``s whose ``strerror`` says what is
wrong, as those of the system are.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 4 * 10**6
"""Configs and templates: a hundred times the largest that anybody writes."""
_WAIT_SECONDS = 10.0
_PIECE = 1 << 20


def read_small(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file; of a pipe (``<(command)``) what comes until it ends.

    Raises ``OSError`` where it has more than ``most`` bytes, and where a pipe gives nothing for ten seconds.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        content = bytearray()
        for piece in _pieces(handle, is_file=stat.S_ISREG(mode)):
            content += piece
            if len(content) > most:
                raise OSError(errno.EFBIG, f"it has more than {most / 1e6:g} MB, which no such file has", str(path))
        return bytes(content)
    finally:
        os.close(handle)


def read_small_text(path: Path, encoding: str = "utf-8", *, most: int = MOST_BYTES) -> str:
    """Read a small file as text, every end of a line as a newline. Raises ``UnicodeDecodeError`` too."""
    return read_small(path, most).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def _pieces(handle: int, *, is_file: bool) -> Iterator[bytes]:
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    while True:
        if not is_file and not waiting.poll(_WAIT_SECONDS * 1000):
            raise OSError(errno.ETIMEDOUT, f"it is no file, and gave nothing for {_WAIT_SECONDS:g} seconds")
        try:
            piece = os.read(handle, _PIECE)
        except BlockingIOError:
            continue
        if not piece:
            return
        yield piece
