"""Temporary files and folders (TMPDIR) that go with the process that made them, however that ends.

Each is locked (flock) as long as its process, or a fork of it, lives. What a kill leaves behind has no lock, and is removed when
the next one is made.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "mt-scratch-"
_NAME = re.compile(_PREFIX + r"[a-z0-9_]{8}(-.*)?", re.DOTALL)
_HELD: list[int] = []
"""Handles of the files of this process, which hold their locks."""


def scratch_file(name: str) -> Path:
    """Return a new, empty file whose name ends in ``name``; it is removed when this process ends. Raises ``OSError``."""

    def make() -> str:
        handle, path = tempfile.mkstemp(prefix=_PREFIX, suffix=f"-{name}")
        os.close(handle)
        return path

    path, handle = _create_locked(make)
    _HELD.append(handle)
    atexit.register(_remove_own, path, os.getpid())
    return path


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, which is removed with all that is in it at the end of the block. Raises ``OSError``."""
    path, handle = _create_locked(lambda: tempfile.mkdtemp(prefix=_PREFIX))
    try:
        yield path
    finally:
        _remove(path)
        os.close(handle)


def _create_locked(make: Callable[[], str]) -> tuple[Path, int]:
    """Create a file or folder; return it and a handle that has its lock."""
    _sweep(Path(tempfile.gettempdir()))
    while True:
        path = Path(make())
        try:
            handle = _claim(path)
        except FileNotFoundError:  # another process has swept it away before it was locked
            continue
        except OSError:  # a file system without locks, where nothing is removed but by its own process
            return path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if handle is not None:
            return path, handle


def _sweep(folder: Path) -> None:
    """Remove what processes of this user left behind that are gone. What cannot be removed is left to the next one."""
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) is None:
            continue
        with suppress(OSError):
            if path.lstat().st_uid != os.getuid() or (handle := _claim(path)) is None:
                continue
            _remove(path)
            os.close(handle)


def _claim(path: Path) -> int | None:
    """A handle with the lock; ``None`` while another process has it, or where the name does not stand for it any more."""
    import fcntl  # here: Windows has none

    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.lstat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_own(path: Path, owner: int) -> None:
    """A process that was forked must not remove what its parent still reads."""
    if os.getpid() == owner:
        path.unlink(missing_ok=True)
