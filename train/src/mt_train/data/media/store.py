"""Features that an encoder made of media, in a folder that is named by a hash of all that they follow from beside the content."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mt_core.errors import DataError
from mt_core.rows import MediaItem
from mt_train.checkpoint.files import sha256
from mt_train.data.file_stamps import is_settled, stamp_of
from mt_train.data.media.store_parts import DATA, DTYPES, ENTRY, INDEX, KNOWN, Part, find_row, read_part, table_of


class FeatureStore:
    """The features of one encoder, by the content of items; ``open`` reads what is there."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self._hashed: dict[bytes, bytes] = {}
        """Contents hashed since ``remember``, by their stamps."""
        self._take([])

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return find_row(self._entries, "key", key) is not None

    @property
    def parts(self) -> set[str]:
        """The names of the parts that were read."""
        return {part.path.stem for part in self._parts}

    # -------------------------------------------------------------------------------------------------------- opening

    def open(self, *, repair: Callable[[str], None] | None = None) -> None:
        """Read all indices. Who holds the lock says with ``repair`` what is damaged, and takes it away; others leave it out."""
        found = []
        for path in sorted(self.folder.glob(f"*{INDEX}")):
            part = read_part(path)
            if part is not None:
                found.append(part if part.is_as_written else _leave_out_damage(part, repair))
            elif repair:
                repair(f"warning: {path}, of stored features, is damaged; they are computed anew")
                path.unlink(missing_ok=True)
        if repair:
            self._remove_unfinished({part.path.stem for part in found})
        self._take(found)

    def _remove_unfinished(self, whole: Iterable[str]) -> None:
        for path in self.folder.glob(f"*{DATA}"):
            if path.stem not in whole:
                path.unlink(missing_ok=True)

    def _take(self, parts: list[Part]) -> None:
        """Have the entries of these parts, in the order of their keys."""
        self._parts = parts
        entries = np.concatenate([np.empty(0, ENTRY), *(part.entries for part in parts)])
        numbers = np.repeat(np.arange(len(parts)), [len(part.entries) for part in parts])
        order = np.argsort(entries, order="key", kind="stable")
        self._entries, self._numbers = entries[order], numbers[order]
        known = np.concatenate([np.empty(0, KNOWN), *(part.known for part in parts)])
        self._known = known[np.argsort(known, order="stamp", kind="stable")]

    # -------------------------------------------------------------------------------------------------------- content

    def key_of(self, item: MediaItem) -> bytes:
        """Return the key of an item: the SHA-256 of its content, and of what it was measured to be. Raises ``DataError``."""
        content = self._content_of(Path(item.path)) if item.path else hashlib.sha256(item.content).digest()
        return hashlib.sha256(content + item.digest).digest()

    def _content_of(self, path: Path) -> bytes:
        """Return the SHA-256 of a file, which is read again only where its stamp is another than it was. Raises ``DataError``."""
        try:
            stamp = stamp_of(path)
            name = hashlib.sha256(repr(stamp).encode()).digest()
            if (content := self._hashed.get(name)) is not None:
                return content
            if (place := find_row(self._known, "stamp", name)) is not None:
                return bytes(self._known[place]["content"]).ljust(32, b"\0")
            if not path.is_file():  # to read a pipe would wait for its writer
                raise OSError("it is no regular file")
            content = bytes.fromhex(sha256(path))
            if is_settled(path, stamp):
                self._hashed[name] = content
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
                path, known = self.folder / f"{secrets.token_hex(8)}{INDEX}", table_of(self._hashed.items(), KNOWN)
                Part(path, "float32", self.width, np.empty(0, ENTRY), known).write_index()
            self._hashed = {}

    # -------------------------------------------------------------------------------------------------------- reading

    def read(self, item: MediaItem, features: int) -> Tensor:
        """Return (features, width). Raises ``DataError`` for another content than was there when the run began."""
        place = find_row(self._entries, "key", self.key_of(item))
        if place is None or self._entries[place]["rows"] != features:
            raise DataError(
                f"{item.path or 'an item of a row'} is not what it was when its features were stored; put the old one back, or encode the"
                " rows anew"
            )
        part, entry = self._parts[self._numbers[place]], self._entries[place]
        content = part.content_of(entry)
        if content is None:
            with suppress(OSError):
                os.utime(part.data)  # whoever opens it next reads it all
            raise DataError(
                f"{part.data}, of stored features, was damaged after the run began; resume the run, which computes what is damaged anew"
            )
        return torch.frombuffer(content, dtype=DTYPES[part.dtype]).view(features, part.width)

    def empty(self, features: int) -> Tensor:
        """Return features of a dummy, which stand nowhere."""
        return torch.zeros(features, self.width)


def _leave_out_damage(part: Part, repair: Callable[[str], None] | None) -> Part:
    """Return what is sound of a part whose data another hand has touched; with ``repair`` that is written down."""
    sound = part.without_damage()
    if repair:
        if lost := len(part.entries) - len(sound.entries):
            repair(f"warning: {part.data}, of stored features, is damaged; those of {lost:,} items are computed anew")
        sound.write_index()
    return sound
