"""One run per folder: a lock that the system drops when its holder ends, however it ends.

``flock`` decides. The text in the file tells a person who holds it, and that the last holder did not end by itself.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from mt_core.errors import OutputError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOST_BYTES = 4096
_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True)
class Holder:
    """The process that holds, or held, a lock."""

    process: int
    host: str
    boot: str

    @classmethod
    def this(cls) -> Holder:
        """The running process."""
        boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        return cls(os.getpid(), socket.gethostname(), boot)

    @property
    def is_here(self) -> bool:
        """Return whether it ran on this machine, in whichever of its starts: nothing can be asked about another one."""
        return self.host == Holder.this().host

    @property
    def lives(self) -> bool:
        """Return whether it certainly still runs, as far as this machine can know."""
        here = Holder.this()
        if (self.host, self.boot) != (here.host, here.boot) or self.process == here.process:
            return False
        try:
            os.kill(self.process, 0)  # asks, sends nothing
        except ProcessLookupError:
            return False
        except PermissionError:  # it runs as another user
            return True
        return True

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


@contextmanager
def hold_lock(path: Path) -> Iterator[str]:
    """Hold the lock file; yields a notice for the user (an earlier run was killed), or an empty text.

    Raises ``OutputError`` that names process and host when another run holds it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        notes = _claim(handle, path)
        _write(handle, json.dumps(asdict(Holder.this())))
        try:
            yield " ".join(notes)
        finally:
            _write(handle, "")  # so that text in a lock that is free tells of a kill
    finally:
        os.close(handle)


def refuse_lost(path: Path) -> None:
    """Raise ``OutputError`` unless the lock file is where this process left it: its folder may have been removed or moved.

    A file that cannot be read for another reason tells nothing, and neither does one without a name in it.
    """
    try:
        text = path.read_bytes()[:_MOST_BYTES]
    except (FileNotFoundError, NotADirectoryError):
        text = None
    except OSError:
        return
    holder = None if text is None else _parse(text)
    if text is None or (holder is not None and holder != Holder.this()):
        now = "there is another one in its place" if text is not None else "it was removed or moved"
        raise OutputError(
            f"output {path.parent} is not the folder any more that this run writes to: {now} while it was in use. Figures, logs and"
            " checkpoints so far are where that folder is now, or gone with it, and nothing more can be saved; choose an --output"
            " that stays, and start the run again"
        )


def is_ours(path: Path) -> bool:
    """Return whether the lock file is where this process left it."""
    try:
        refuse_lost(path)
    except OutputError:
        return False
    return True


def read_holder(path: Path) -> Holder | None:
    """Return who a lock file names: the holder, or one that was killed; nobody where it is free or cannot be read."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        with path.open("rb") as file:
            return _parse(file.read(_MOST_BYTES))
    except OSError:
        return None


def _claim(handle: int, path: Path) -> list[str]:
    notes, locks = [], True
    import fcntl  # here: Windows has none, and `mt-plugins doctor` has to say so there

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputError(_describe_holder(path, _read_soon(handle))) from error
    except OSError as error:
        locks = False
        notes.append(
            f"warning: the filesystem of {path.parent} has no locks ({error.strerror}), so a second run there would go"
            " unnoticed."
        )
    last = _read(handle)
    if last is not None and not locks and last.lives:
        raise OutputError(_describe_holder(path, last))
    if last is not None:
        notes.append(f"notice: {last} used {path.parent} and did not end by itself; this run takes the folder over.")
    return notes


def _describe_holder(path: Path, holder: Holder | None) -> str:
    return f"output {path.parent} is in use by {holder or 'another process'}; wait for it, or choose another --output"


def _read_soon(handle: int) -> Holder | None:
    """Return who the file names: the holder may have the lock and not yet have written its name."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (holder := _read(handle)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return holder


def _read(handle: int) -> Holder | None:
    """Return who the file names; nobody when it is empty or only half written."""
    return _parse(os.pread(handle, _MOST_BYTES, 0))


def _parse(text: bytes) -> Holder | None:
    try:
        content = json.loads(text)
        return Holder(int(content["process"]), str(content["host"]), str(content["boot"]))
    except (ValueError, TypeError, KeyError):
        return None


def _write(handle: int, text: str) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, text.encode(), 0)
