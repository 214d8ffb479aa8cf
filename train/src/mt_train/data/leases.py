"""Leases of chunks: a file beside each chunk that somebody encodes, which says who. Nobody waits for a lock, nobody asks a server.

A lease spares work and guards nothing: chunks are written at once and follow from their rows alone, so that two processes that
encode the same one leave the same bytes. That is why a lease may be taken over by guessing that its holder is gone.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LEASE_SECONDS = 600.0
"""Age at which a lease of another host counts for nothing: no chunk takes so long."""

_WRITTEN_SECONDS = 5.0
"""Age at which a lease that says nothing was left by a process that was killed as it wrote it."""


@contextmanager
def hold_lease(path: Path) -> Iterator[bool]:
    """Whether this process has the lease now, until the end of the block. Raises ``OSError`` where no file can be written."""
    if not _claim(path):
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)


def _claim(path: Path) -> bool:
    for _ in range(2):
        with suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with os.fdopen(handle, "w") as file:
                json.dump({**_holder(os.getpid()), "time": time.time()}, file)
            return True
        if _is_held(path):
            return False
        path.unlink(missing_ok=True)  # perhaps of somebody who took it over just now: then both encode the chunk
    return False


def _is_held(path: Path) -> bool:
    """Return whether its holder lives: on this host by its process, elsewhere by age."""
    try:
        age = time.time() - path.stat().st_mtime
        told = json.loads(path.read_text(encoding="utf-8"))
        host, process, started = str(told["host"]), int(told["process"]), str(told["started"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        return age < _WRITTEN_SECONDS
    if host != _host():
        return age < LEASE_SECONDS
    return _started(process) == started


def _holder(process: int) -> dict[str, Any]:
    return {"host": _host(), "process": process, "started": _started(process)}


def _host() -> str:
    """Return a name for what process numbers are numbers of: containers of one host may count apart."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(process: int) -> str | None:
    """Return when a process began, in the kernel's ticks, which tells it from a later one of its number; ``None`` where there is none."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    state, *rest = stat.rpartition(")")[2].split()  # proc(5): the name before it may have blanks
    return None if state in "ZX" else rest[18]
