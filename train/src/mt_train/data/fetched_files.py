"""Files of token caches behind addresses, as copies on a disk: shared by all processes of a machine, within a limit of bytes.

A copy is called by its SHA-256 and size, so that what is there is what was asked for, wherever it came from. Who reads a copy shares
its lock (flock); copies that nobody reads make room, the least recently used first. One that is fetched lies in ``NAME.part`` until
its hash is right, takes its whole size from the beginning, and has ``NAME.lock``: others wait for it, and a start after a kill goes
on with it. Nobody waits while it has a lock of a chunk, so that processes whose chunks do not fit together take turns.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mt_core.errors import DataError
from mt_core.files import RemoteFile, storage
from mt_train.data.chunk_files import has_digest
from mt_train.data.locks import ASK_SECONDS, claim, folder_held, hold_lock, share

LIMIT = "MT_CHUNK_CACHE_GIB"
"""Variable with the most that all copies take, in GiB: it belongs to a machine and not to a run."""
GIB = 1 << 30
_DEFAULT_GIB = 100
_TOLD_SECONDS, _WAIT_SECONDS = 10.0, 600.0
"""Time after which somebody is told that room is waited for, which is an error where the disk is full, and after which it always is."""
_AT_ONCE = 8
_NAME = re.compile(r"[0-9a-f]{64}-(\d+)(\.part)?")
_PIECE = 1 << 20


@dataclass(frozen=True)
class WantedFile:
    """A file behind an address whose SHA-256 is known; a chunk's is of what follows the hash itself (``skips`` bytes)."""

    remote: RemoteFile
    url: str
    size: int
    digest: str
    skips: int = 0

    @property
    def name(self) -> str:
        """Name of the local copy."""
        return f"{self.digest}-{self.size}"


@dataclass
class FetchedFiles:
    """Copies below ``root``, of at most ``limit`` bytes together; ``say`` tells a person what takes long or was damaged."""

    root: Path
    limit: int
    say: Callable[[str], None]
    _intact: set[str] = field(default_factory=set, repr=False)
    """Names of copies whose bytes this process has checked, or fetched."""

    @classmethod
    def of_machine(cls, root: Path, say: Callable[[str], None]) -> FetchedFiles:
        """Return the copies below ``root``, within the limit that the environment sets. Raises ``DataError`` for one that is no number."""
        given = os.environ.get(LIMIT) or str(_DEFAULT_GIB)
        try:
            limit = int(float(given) * GIB)
        except (ValueError, OverflowError) as error:
            raise DataError(f"{LIMIT}={given} is no number. Set it to the most bytes of chunks here, in GiB") from error
        return cls(root, limit, say)

    def require(self, whole: int, largest: int, url: str) -> None:
        """Raise ``DataError`` unless there may be ``whole`` bytes of what is always read, and two chunks of the largest size."""
        if whole + 2 * largest > self.limit:
            raise DataError(
                f"{url} needs at least {_gib(whole + 2 * largest)} in {self.root} (two chunks of {_gib(largest)}, and"
                f" {_gib(whole)} that say where samples begin), and {LIMIT} allows {_gib(self.limit)}. Raise it"
            )

    @contextmanager
    def handle_of(self, wanted: WantedFile) -> Iterator[int]:
        """A handle of the copy, fetched where it is not there, which stays until the end of the block. Raises ``DataError``."""
        handle = self.open(wanted)
        try:
            yield handle
        finally:
            os.close(handle)

    def open(self, wanted: WantedFile) -> int:
        """A handle of the copy, which stays until this is closed. Raises ``DataError``."""
        try:
            while (handle := self._find(wanted)) is None:
                self.root.mkdir(parents=True, exist_ok=True)
                with hold_lock(self._lock_of(wanted.name), lambda _: None):
                    if not (self.root / wanted.name).exists():
                        handle = self._fetch(wanted)
                if handle is not None:
                    break
            return handle
        except OSError as error:
            raise DataError(
                f"the folder {self.root} of chunks cannot be used: {error.strerror or error}. Set MT_CACHE to another folder"
            ) from error

    def prepare(self, several: Sequence[WantedFile]) -> None:
        """Fetch several files at once, those that are not there and fit into half of the room; others come when they are read."""
        missing = [each for each in several if not (self.root / each.name).exists()]
        while sum(each.size for each in missing) > self.limit // 2:
            missing.pop()
        if len(missing) > 1:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for handle in pool.map(self.open, missing):
                    os.close(handle)

    def _find(self, wanted: WantedFile) -> int | None:
        """The copy with a share of its lock, if it is there; one that is damaged is told and removed."""
        handle = share(self.root / wanted.name)
        if handle is None:
            return None
        if wanted.name not in self._intact and not _is_intact(handle, wanted):
            os.close(handle)
            self.say(f"warning: {self.root / wanted.name} is damaged; it is fetched anew")
            (self.root / wanted.name).unlink(missing_ok=True)
            return None
        self._intact.add(wanted.name)
        with suppress(OSError):  # the folder of somebody else
            os.utime(handle)
        return handle

    def _fetch(self, wanted: WantedFile) -> int:
        """Fetch it, and return a handle that has had a share of its lock since before it got its name. Its ``.lock`` is held."""
        part = self.root / f"{wanted.name}.part"
        self._make_room(part, wanted)
        place = part / wanted.name
        storage().fetch(wanted.remote, place)
        handle = share(place)
        if handle is None or not _is_intact(handle, wanted):
            if handle is not None:
                os.close(handle)
            shutil.rmtree(part)
            raise DataError(
                f"{wanted.url} is not what the index of its token cache says (SHA-256 {wanted.digest[:12]}…, {wanted.size:,} bytes): it"
                " was damaged or replaced. Remove it there, put it there again (mt-data build with the same --data.cache), and start"
                " again or resume"
            )
        os.replace(place, self.root / wanted.name)
        self._intact.add(wanted.name)
        shutil.rmtree(part)
        self._lock_of(wanted.name).unlink(missing_ok=True)
        return handle

    def _make_room(self, part: Path, wanted: WantedFile) -> None:
        """Make the folder ``part``, which stands for the size in its name, once copies that nobody reads have made room for it.

        Raises ``DataError`` where the disk is full, or what others read is in the way for too long.
        """
        began, told = time.monotonic(), False
        while True:
            with folder_held(self.root):
                used, free = self._remove_unused(part, wanted.size)
                if used + wanted.size <= self.limit and free >= wanted.size:
                    part.mkdir(exist_ok=True)
                    return
            waited = time.monotonic() - began
            if waited > (_WAIT_SECONDS if free >= wanted.size else _TOLD_SECONDS):  # a disk is seldom full for a moment
                raise DataError(
                    f"{wanted.url} needs {_gib(wanted.size)} in {self.root}, where {_gib(used)} are in use, {_gib(self.limit)} are"
                    f" allowed ({LIMIT}) and {_gib(free)} are free. Raise {LIMIT}, make room, or set MT_CACHE to another folder"
                )
            if waited > _TOLD_SECONDS and not told:
                self.say(f"waiting for room in {self.root}: what other processes read and fetch takes {_gib(used)}")
                told = True
            time.sleep(ASK_SECONDS)

    def _remove_unused(self, part: Path, needed: int) -> tuple[int, int]:
        """Remove what nobody reads or fetches until so many bytes fit; return what is left but for ``part``, and what the disk has."""
        sizes = {path: int(match[1]) for path in self.root.iterdir() if (match := _NAME.fullmatch(path.name))}
        sizes.pop(part, None)
        used = sum(sizes.values())
        if used + needed > self.limit or shutil.disk_usage(self.root).free < needed:
            for path in sorted(sizes, key=_used_at):
                if used + needed <= self.limit and shutil.disk_usage(self.root).free >= needed:
                    break
                if self._remove(path):
                    used -= sizes[path]
        return used, shutil.disk_usage(self.root).free

    def _remove(self, path: Path) -> bool:
        """Remove a copy, or a part; ``False`` where a process reads or fetches it."""
        import fcntl

        if path.suffix == ".part":
            return self._remove_part(path)
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except PermissionError:  # of somebody else
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            os.close(handle)
        return True

    def _remove_part(self, part: Path) -> bool:
        lock = claim(self._lock_of(part.stem))
        if lock is None:
            return False
        is_there = part.exists()  # else it is a whole copy since it was looked for, and takes as much as before
        if is_there:
            shutil.rmtree(part)
        self._lock_of(part.stem).unlink(missing_ok=True)
        os.close(lock)
        return is_there

    def _lock_of(self, name: str) -> Path:
        return self.root / f"{name}.lock"


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_intact(handle: int, wanted: WantedFile) -> bool:
    """Return whether a file has the size and the hash that it is to have. Reads all of it. Raises ``OSError``."""
    with os.fdopen(os.dup(handle), "rb", buffering=0) as file:
        file.seek(0)
        return has_digest(file, wanted.size, wanted.digest, skips=wanted.skips)


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"
