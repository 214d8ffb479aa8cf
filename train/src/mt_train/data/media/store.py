"""Features that an encoder made of media, in a folder that is named by a hash of all that they follow from beside the content.

``PART.data`` has the features of many items one after another, as they lie in memory; ``PART.index`` says where those of each content
are, with their CRC-32, and which content files had (by what tells that they changed), and ends in its own SHA-256. It comes last: a part
without one counts for nothing, so that a kill loses what was not whole. Nothing here executes, and nothing is read that was not written so.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt_core.errors import DataError
from mt_core.rows import MediaItem
from mt_train.checkpoint.files import replace_bytes

DATA, INDEX = ".data", ".index"
ENTRY = np.dtype([("key", "S32"), ("offset", "<u8"), ("rows", "<u4"), ("crc", "<u4")])
"""Features of one content: the place of their first byte, how many they are, and the CRC-32 of their bytes."""
KNOWN = np.dtype([("about", "S32"), ("content", "S32")])
"""SHA-256 of what the file system says of a file, and of its content."""
DTYPES = {str(each).removeprefix("torch."): each for each in (torch.float32, torch.bfloat16, torch.float16)}
PART_BYTES = 256 << 20
"""Size at which a part is closed: so much of the work is lost by a kill."""

_SETTLED_SECONDS = 2.0
"""A file that changed later than so long ago may change again within the resolution of its time, so its hash is not remembered."""
_PIECE = 1 << 20


class UnusableStoreError(DataError):
    """A folder that cannot be written, or has no room."""


@dataclass(frozen=True)
class _Part:
    """One part, as its index says."""

    path: Path
    dtype: torch.dtype
    width: int
    entries: NDArray[Any]
    known: NDArray[Any]
    size: int
    changed: int
    """Bytes of the data, and when they were written (ns)."""

    def is_as_written(self) -> bool:
        """Return whether the file system says that the data are those that were written."""
        if not len(self.entries):
            return True
        with suppress(OSError):
            now = self.path.with_suffix(DATA).stat()
            return (now.st_size, now.st_mtime_ns) == (self.size, self.changed)
        return False

    def content_of(self, entry: Any) -> bytearray | None:
        """Return the bytes of an entry; ``None`` where they are not what was written, or cannot be read."""
        content = bytearray(int(entry["rows"]) * self.width * self.dtype.itemsize)
        try:
            with self.path.with_suffix(DATA).open("rb") as file:
                file.seek(int(entry["offset"]))
                read = file.readinto(content)
        except OSError:
            return None
        return content if read == len(content) and zlib.crc32(content) == int(entry["crc"]) else None


class FeatureStore:
    """The features of one encoder, by the content of items; ``open`` reads what is there."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self._parts: list[_Part] = []
        self._hashed: dict[bytes, bytes] = {}
        """What was hashed since ``remember``."""
        self._put([])

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return _find(self._entries, "key", key) is not None

    @property
    def parts(self) -> set[str]:
        """The names of the parts that were read."""
        return {part.path.stem for part in self._parts}

    def open(self, *, repair: Callable[[str], None] | None = None) -> None:
        """Read all indices. Who holds the lock says with ``repair`` what is damaged, and takes it away; others leave it out."""
        found = []
        for path in sorted(self.folder.glob(f"*{INDEX}")):
            part = _read_index(path)
            if part is None:
                if repair:
                    repair(f"warning: {path}, of stored features, is damaged; they are computed anew")
                    path.unlink(missing_ok=True)
                continue
            found.append(part if part.is_as_written() else _checked(part, repair))
        if repair:
            self._remove_unfinished({part.path.stem for part in found})
        self._put(found)

    def _remove_unfinished(self, whole: Iterable[str]) -> None:
        for path in self.folder.glob(f"*{DATA}"):
            if path.stem not in whole:
                path.unlink(missing_ok=True)

    def _put(self, parts: list[_Part]) -> None:
        self._parts = parts
        entries = [np.empty(0, ENTRY), *(part.entries for part in parts)]
        numbers = np.repeat(np.arange(len(parts)), [len(part.entries) for part in parts])
        order = np.argsort(every := np.concatenate(entries), order="key", kind="stable")
        self._entries, self._numbers = every[order], numbers[order]
        known = np.concatenate([np.empty(0, KNOWN), *(part.known for part in parts)])
        self._known = known[np.argsort(known, order="about", kind="stable")]

    # -------------------------------------------------------------------------------------------------------- content

    def key_of(self, item: MediaItem) -> bytes:
        """Return the key of an item: the SHA-256 of its content, and of what it was measured to be. Raises ``DataError``."""
        content = self._content_of(item.path) if item.path else hashlib.sha256(item.content).digest()
        return hashlib.sha256(content + item.digest).digest()

    def _content_of(self, path: str) -> bytes:
        """SHA-256 of a file, read again only where its size, times or place are others than they were."""
        try:
            about = about_file(path)
            if (content := self._hashed.get(about)) is not None:
                return content
            if (place := _find(self._known, "about", about)) is not None:
                return bytes(self._known[place]["content"]).ljust(32, b"\0")
            content = _hash(path)
            settled = time.time() - os.stat(path).st_mtime > _SETTLED_SECONDS
            if settled and about_file(path) == about:
                self._hashed[about] = content
        except OSError as error:
            raise DataError(
                f"{path} cannot be read any more: {error.strerror or error}. Put it back, and resume the run"
            ) from error
        return content

    def remember(self) -> None:
        """Write down the hashes of files, so that nobody has to read these again."""
        if self._hashed:
            with suppress(OSError):  # a folder of somebody else: they are hashed again then
                self.folder.mkdir(parents=True, exist_ok=True)
                path = self.folder / f"{secrets.token_hex(8)}{INDEX}"
                _write_index(
                    path, "float32", self.width, np.empty(0, ENTRY), _table(self._hashed.items(), KNOWN), (0, 0)
                )
            self._hashed = {}

    # -------------------------------------------------------------------------------------------------------- reading

    def read(self, item: MediaItem, features: int) -> Tensor:
        """Return (features, width). Raises ``DataError`` for another content than was there when the run began."""
        place = _find(self._entries, "key", self.key_of(item))
        if place is None or self._entries[place]["rows"] != features:
            raise DataError(
                f"{item.path or 'an item of a row'} is not what it was when its features were stored; put the old one back, or encode the"
                " rows anew"
            )
        part, entry = self._parts[self._numbers[place]], self._entries[place]
        content = part.content_of(entry)
        if content is None:
            with suppress(OSError):
                os.utime(part.path.with_suffix(DATA))  # whoever opens it next reads it all
            raise DataError(
                f"{part.path.with_suffix(DATA)}, of stored features, was damaged after the run began; resume the run, which computes"
                " what is damaged anew"
            )
        return torch.frombuffer(content, dtype=part.dtype).view(features, part.width)

    def empty(self, features: int) -> Tensor:
        """Return features of a dummy, which stand nowhere."""
        return torch.zeros(features, self.width)


@dataclass
class PartWriter:
    """Writes features into parts of their own; who calls it holds the lock of the folder."""

    store: FeatureStore
    _file: Any = None
    _path: Path = field(default_factory=Path)
    _end: int = 0
    _entries: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    _dtype: str = ""
    _failure: OSError | None = None

    def add(self, key: bytes, features_NW: Tensor) -> None:
        """Write the features of an item. Raises ``UnusableStoreError`` where the folder takes no more; what was whole is kept."""
        dtype = str(features_NW.dtype).removeprefix("torch.")
        assert dtype in DTYPES, f"features of {dtype}"
        content = features_NW.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        try:
            if self._file is None:
                self._begin()
            self._dtype = dtype
            _write_all(self._file, content)
            self._entries.append((key, self._end, len(features_NW), zlib.crc32(content)))
            self._end += len(content)
            if self._end >= PART_BYTES:
                self.finish()
        except OSError as error:
            self._failure = self._failure or error
            self.close()
            self.refuse_unwritten()

    def close(self) -> None:
        """Close the part with all that is whole, whatever happened; ``refuse_unwritten`` says what could not be written."""
        try:
            self.finish()
        except OSError as error:
            self._failure = self._failure or error
            self._abandon()

    def refuse_unwritten(self) -> None:
        """Raise ``UnusableStoreError`` where the folder did not take something."""
        if (error := self._failure) is not None:
            raise UnusableStoreError(
                f"features cannot be written into {self.store.folder}: {error.strerror or error}. What is whole is kept: make room"
                " there, and start again, or choose another folder (--encoders.NAME.features FOLDER)"
            ) from error

    def _begin(self) -> None:
        self._path = self.store.folder / f"{secrets.token_hex(8)}{DATA}"
        self._file, self._end, self._entries = self._path.open("xb", buffering=0), 0, []

    def finish(self) -> None:
        """Close the part, and write its index. Raises ``OSError``."""
        if self._file is None:
            return
        self._file.truncate(self._end)  # half of one, where there was no more room
        os.fsync(self._file.fileno())
        about = os.fstat(self._file.fileno())
        if self._entries:
            entries = _table(self._entries, ENTRY)
            stamp = (about.st_size, about.st_mtime_ns)
            _write_index(
                self._path.with_suffix(INDEX), self._dtype, self.store.width, entries, np.empty(0, KNOWN), stamp
            )
            self._file.close()
            self._file = None
        else:
            self._abandon()

    def _abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._file = None


def about_file(path: str) -> bytes:
    """Return a hash of what tells that a file changed. Raises ``OSError``."""
    now = os.stat(path)
    if not stat.S_ISREG(now.st_mode):
        raise OSError(f"{path} is no regular file")
    about = (os.path.abspath(path), now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_dev)
    return hashlib.sha256(repr(about).encode("utf-8", "surrogateescape")).digest()


def _hash(path: str) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.digest()


def _find(table: NDArray[Any], name: str, key: bytes) -> int | None:
    """The row of a sorted table with this key."""
    wanted = np.array(key, "S32")
    place = int(np.searchsorted(table[name], wanted))
    return place if place < len(table) and table[name][place] == wanted else None


def _table(rows: Iterable[tuple[Any, ...]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.array([tuple(row) for row in rows], dtype)


def _write_all(file: Any, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


def _write_index(
    path: Path, dtype: str, width: int, entries: NDArray[Any], known: NDArray[Any], stamp: tuple[int, int]
) -> None:
    about = {"dtype": dtype, "width": width, "entries": len(entries), "known": len(known), "data": list(stamp)}
    content = json.dumps(about).encode() + b"\n" + entries.tobytes() + known.tobytes()
    replace_bytes(path, content + hashlib.sha256(content).digest())


def _read_index(path: Path) -> _Part | None:
    """A part; ``None`` where its index is not what was written."""
    try:
        content = path.read_bytes()
        content, seal = content[:-32], content[-32:]
        if hashlib.sha256(content).digest() != seal:
            return None
        line, _, rest = content.partition(b"\n")
        about: Mapping[str, Any] = json.loads(line)
        middle = about["entries"] * ENTRY.itemsize
        entries, known = np.frombuffer(rest[:middle], ENTRY), np.frombuffer(rest[middle:], KNOWN)
        size, changed = about["data"]
        return _Part(path, DTYPES[about["dtype"]], int(about["width"]), entries, known, size, changed)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _checked(part: _Part, repair: Callable[[str], None] | None) -> _Part:
    """A part whose data another hand has touched, with what is sound of it; with ``repair`` that is written down."""
    entries = part.entries[[part.content_of(entry) is not None for entry in part.entries]]
    if repair:
        lost = len(part.entries) - len(entries)
        if lost:
            repair(
                f"warning: {part.path.with_suffix(DATA)}, of stored features, is damaged; those of {lost:,} items are computed anew"
            )
        stamp = (0, 0)
        with suppress(FileNotFoundError):
            now = part.path.with_suffix(DATA).stat()
            stamp = (now.st_size, now.st_mtime_ns)
        name = next(name for name, each in DTYPES.items() if each == part.dtype)
        _write_index(part.path, name, part.width, entries, part.known, stamp)
    return _Part(part.path, part.dtype, part.width, entries, part.known, part.size, part.changed)
