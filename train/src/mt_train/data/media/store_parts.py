"""Parts of a folder of features, as files: ``PART.data`` and ``PART.index``.

The data are the features of many items one after another, as they lie in memory. The index says where those of each content are, with
their CRC-32, and which content files had (by their stamps), and ends in its own SHA-256. It is written last: a part without one counts
for nothing, so that a kill loses what was not whole. Nothing here executes, and nothing is read that was not written so.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from os import stat_result
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mt_train.checkpoint.files import replace_bytes

DATA, INDEX = ".data", ".index"
ENTRY = np.dtype([("key", "S32"), ("offset", "<u8"), ("rows", "<u4"), ("crc", "<u4")])
"""Features of one content: the place of their first byte, how many they are, and the CRC-32 of their bytes."""
KNOWN = np.dtype([("stamp", "S32"), ("content", "S32")])
"""SHA-256 of the stamp of a file, and of its content."""
DTYPES = {str(each).removeprefix("torch."): each for each in (torch.float32, torch.bfloat16, torch.float16)}
"""Precisions of features by the names that indices have."""

_SEAL_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Part:
    """A part, as its index (``path``) says."""

    path: Path
    dtype: str
    width: int
    entries: NDArray[Any]
    known: NDArray[Any]
    written: tuple[int, int] = (0, 0)
    """Bytes of the data, and when they were written (ns)."""

    @property
    def data(self) -> Path:
        """The file with the features."""
        return self.path.with_suffix(DATA)

    @property
    def is_as_written(self) -> bool:
        """Whether the file system says that the data are those that were written."""
        return not len(self.entries) or self._data_now() == self.written

    def content_of(self, entry: Any) -> bytearray | None:
        """Return the bytes of an entry; ``None`` where they are not what was written, or cannot be read."""
        content = bytearray(int(entry["rows"]) * self.width * DTYPES[self.dtype].itemsize)
        try:
            with self.data.open("rb") as file:
                file.seek(int(entry["offset"]))
                read = file.readinto(content)
        except OSError:
            return None
        return content if read == len(content) and zlib.crc32(content) == int(entry["crc"]) else None

    def without_damage(self) -> Part:
        """Return the part with those entries alone whose bytes are what was written, and the data as they are now."""
        is_sound = [self.content_of(entry) is not None for entry in self.entries]
        return replace(self, entries=self.entries[is_sound], written=self._data_now() or (0, 0))

    def write_index(self) -> None:
        """Replace the index. Raises ``OSError``."""
        counts = {"entries": len(self.entries), "known": len(self.known)}
        head = json.dumps({"dtype": self.dtype, "width": self.width, **counts, "data": list(self.written)})
        content = head.encode() + b"\n" + self.entries.tobytes() + self.known.tobytes()
        replace_bytes(self.path, content + hashlib.sha256(content).digest())

    def _data_now(self) -> tuple[int, int] | None:
        with suppress(OSError):
            return written_of(self.data.stat())
        return None


def read_part(path: Path) -> Part | None:
    """Return the part of an index; ``None`` where this is not what was written."""
    try:
        sealed = path.read_bytes()
        content, seal = sealed[:-_SEAL_BYTES], sealed[-_SEAL_BYTES:]
        if hashlib.sha256(content).digest() != seal:
            return None
        line, _, rest = content.partition(b"\n")
        head: Mapping[str, Any] = json.loads(line)
        middle = head["entries"] * ENTRY.itemsize
        entries, known = np.frombuffer(rest[:middle], ENTRY), np.frombuffer(rest[middle:], KNOWN)
        size, changed = head["data"]
        if head["dtype"] not in DTYPES:
            return None
        return Part(path, head["dtype"], int(head["width"]), entries, known, (size, changed))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def written_of(about: stat_result) -> tuple[int, int]:
    """Return by what the data of a part tell that another hand has touched them: their size, and when they were written (ns)."""
    return about.st_size, about.st_mtime_ns


def table_of(rows: Iterable[tuple[Any, ...]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return rows as a table of ``ENTRY`` or ``KNOWN``."""
    return np.array([tuple(row) for row in rows], dtype)


def find_row(table: NDArray[Any], name: str, key: bytes) -> int | None:
    """Return the row with this key, in a table that is sorted by the column ``name``."""
    wanted = np.array(key, "S32")
    place = int(np.searchsorted(table[name], wanted))
    return place if place < len(table) and table[name][place] == wanted else None
