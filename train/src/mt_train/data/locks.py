"""Locks of those who make, and who read, a folder of a cache: ``KEY.lock``, held (flock) by one maker or shared by readers.

A process that ends, however it ends, has no lock any longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ASK_SECONDS = 0.2
"""Time between two questions whether a lock is free."""


def lock_of(folder: Path) -> Path:
    """Return the file whose lock makers and readers of a folder have."""
    return folder.with_name(f"{folder.name}.lock")


@contextmanager
def hold_lock(
    path: Path, say: Callable[[str], None], *, shared: bool = False, is_done: Callable[[], bool] = lambda: False
) -> Iterator[bool]:
    """The lock, once nobody else has it, or with ``shared`` nobody has it alone; whether it is held.

    It is not where ``is_done`` says that another has done what it is for, and may share it for as long as it reads that. Raises
    ``OSError`` where a file cannot be written, or there are no locks.
    """
    told = False
    while (handle := claim(path, shared=shared)) is None:
        if is_done():
            yield False
            return
        if not told:
            say(f"waiting for another process that encodes the same rows ({path})")
        told = True
        time.sleep(ASK_SECONDS)
    try:
        yield True
    finally:
        os.close(handle)


def claim(path: Path, *, shared: bool = False) -> int | None:
    """A handle that has the lock, alone or shared, until it is closed; ``None`` while another has it. Raises ``OSError``."""
    import fcntl  # here: Windows has none

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        if _is(handle, path):  # not one that was removed between opening and locking it
            return handle
    except BlockingIOError:
        pass
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None


@contextmanager
def folder_held(path: Path) -> Iterator[bool]:
    """Lock a folder itself, once nobody else has it; whether its name still stands for it then. Raises ``OSError``."""
    import fcntl

    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield _is(handle, path)
    finally:
        os.close(handle)


def share(path: Path) -> int | None:
    """A handle that keeps others from claiming the lock until it is closed; ``None`` where there is no file, or no lock to be had."""
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
    except OSError:
        os.close(handle)
        return None
    return handle


def _is(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
