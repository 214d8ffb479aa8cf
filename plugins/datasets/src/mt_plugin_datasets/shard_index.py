"""Index of a shard: where its samples and their members are, made once by reading headers, and kept in ``shards`` of ``MT_CACHE``.

A sample is consecutive members whose names are the same up to the first dot behind the last slash (https://github.com/webdataset/webdataset).
An index is under a name that is made of its shard's path, size, times and inode: of a shard that changed another one is made.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import zlib
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mt_core import DataError
from mt_core.files import cache_root, decompressed_path, replace_file

from .tar_headers import Member, read_members

FOLDER = "shards"
_VERSION = 1
_META = re.compile(r"__[^/]*__($|/)")
"""Names of members that webdataset keeps for facts about the shard."""

_BUFFER = 4096
"""Bytes that are read for a header: more would be content of large members, which nobody asks for here."""

_SETTLED_SECONDS = 2.0
"""A shard that changed later than so long ago may change again within the resolution of its time: its index is not kept."""

_DIGEST = 32
"""Bytes of the SHA-256 in front of a kept index."""

_OLD_SECONDS = 90 * 24 * 3600.0
_NAME = re.compile(r"[0-9a-f]{40}\.index")


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """Members of the samples of a shard, as arrays."""

    places: Any
    """First byte, bytes, and end of the name in ``names`` of each member (members, 3; int64).

    A member that is no regular file has -1 - n bytes, where ``about["kinds"][n]`` says what it is.
    """
    names: bytes
    begins: Any
    """Number of the first member of each sample, and of all members (int64)."""
    about: dict[str, Any]
    """``endings``: ending → number of its members and the first one's name; ``unnamed``: the same of members that are in no sample."""

    @property
    def samples(self) -> int:
        return len(self.begins) - 1

    def members(self, sample: int) -> Iterator[Member]:
        """Yield the members of a sample."""
        first, last = (int(each) for each in self.begins[sample : sample + 2])
        name_begin = int(self.places[first - 1, 2]) if first else 0
        for start, size, name_end in self.places[first:last].tolist():
            kind = self.about["kinds"][-1 - size] if size < 0 else ""
            yield Member(self.names[name_begin:name_end].decode(), start, max(size, 0), kind)
            name_begin = name_end


def split_name(name: str) -> tuple[str, str]:
    """Return the key of a sample, and the ending of its member in lower case; two empty texts for a name that belongs to no sample."""
    folder, slash, last = name.rpartition("/")
    stem, dot, ending = last.partition(".")
    return (f"{folder}{slash}{stem}", ending.lower()) if stem and dot else ("", "")


def stamp_of(path: Path) -> tuple[str | int, ...]:
    """Return what tells that a file changed. Raises ``DataError``."""
    try:
        now = path.stat()
    except OSError as error:
        raise DataError(f"{path.absolute()} cannot be read: {error.strerror}. Put it back") from error
    return str(path.absolute()), now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_dev


def content_of(path: Path) -> Path:
    """Return the shard itself, or its decompressed copy, which is made once in a process. Raises ``DataError``, ``OSError``."""
    return _decompress(path, stamp_of(path))


@cache
def _decompress(path: Path, stamp: tuple[str | int, ...]) -> Path:
    return decompressed_path(path)


def load_index(path: Path) -> ShardIndex:
    """Return the index of a shard, from the cache, or made and kept there. Raises ``DataError`` for a shard that is not whole."""
    stamp = stamp_of(path)
    saved = cache_root() / FOLDER / f"{hashlib.sha256(repr((_VERSION, *stamp)).encode()).hexdigest()[:40]}.index"
    if (found := _read(saved)) is not None:
        return found
    made = _make(path)
    if stamp_of(path) != stamp:
        raise DataError(f"{path.absolute()} changed while it was read. Start again once nobody writes it")
    if time.time() - path.stat().st_mtime > _SETTLED_SECONDS:
        _save(made, saved)
    return made


@dataclass
class _Draft:
    """An index that grows."""

    places: array[int] = field(default_factory=lambda: array("q"))
    names: bytearray = field(default_factory=bytearray)
    begins: array[int] = field(default_factory=lambda: array("q"))
    endings: dict[str, list[Any]] = field(default_factory=dict)
    unnamed: list[Any] = field(default_factory=lambda: [0, ""])
    kinds: dict[str, int] = field(default_factory=dict)
    key: str = ""

    def add(self, member: Member) -> None:
        if _META.match(member.name):
            return
        key, ending = split_name(member.name)
        if not key:
            self.unnamed = [self.unnamed[0] + 1, self.unnamed[1] or member.name]
            return
        if key != self.key:
            self.begins.append(len(self.places) // 3)
            self.key = key
        self.endings.setdefault(ending, [0, member.name])[0] += 1
        self.names += member.name.encode()
        size = -1 - self.kinds.setdefault(member.kind, len(self.kinds)) if member.kind else member.size
        self.places.extend((member.start, size, len(self.names)))


def _make(path: Path) -> ShardIndex:
    import numpy as np

    draft = _Draft()
    try:
        with content_of(path).open("rb", buffering=_BUFFER) as file:
            for member in read_members(file, path):
                draft.add(member)
    except OSError as error:
        raise DataError(f"{path.absolute()} cannot be read: {error.strerror}. Check its permissions") from error
    begins = np.array([*draft.begins, len(draft.places) // 3], np.int64)
    about = {"endings": draft.endings, "unnamed": draft.unnamed, "kinds": list(draft.kinds)}
    return ShardIndex(np.array(draft.places, np.int64).reshape(-1, 3), bytes(draft.names), begins, about)


def _read(saved: Path) -> ShardIndex | None:
    """An index that was kept; ``None`` where none is, or a damaged one, so that it is made anew."""
    import numpy as np

    try:
        content = saved.read_bytes()
    except OSError:
        return None
    digest, packed = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(packed).digest() != digest:
        return None
    with suppress(OSError):  # the cache of somebody else
        os.utime(saved)
    head, _, rest = zlib.decompress(packed).partition(b"\n")
    about, members, samples = json.loads(head)
    places = np.frombuffer(rest, "<i8", 3 * members).reshape(-1, 3)
    begins = np.frombuffer(rest, "<i8", samples + 1, places.nbytes)
    return ShardIndex(places, rest[places.nbytes + begins.nbytes :], begins, about)


def _save(index: ShardIndex, saved: Path) -> None:
    head = json.dumps([index.about, len(index.places), index.samples]).encode()
    arrays = (each.astype("<i8").tobytes() for each in (index.places, index.begins))
    packed = zlib.compress(b"".join([head, b"\n", *arrays, index.names]), 1)
    with suppress(OSError):  # headers are read again then, which costs time alone
        saved.parent.mkdir(parents=True, exist_ok=True)
        _remove_old(saved.parent)
        with replace_file(saved, by_many=True) as file:
            file.write(hashlib.sha256(packed).digest() + packed)


@cache
def _remove_old(folder: Path) -> None:
    """Remove indexes that nobody has used for three months, once in a process. Raises ``OSError``."""
    latest = time.time() - _OLD_SECONDS
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) and path.lstat().st_mtime < latest:
            path.unlink(missing_ok=True)
