"""Writing of features into parts of a folder, of which a full disk or a kill loses only what was not whole."""

from __future__ import annotations

import os
import secrets
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mt_core.errors import DataError
from mt_train.data.media.store_parts import DATA, DTYPES, ENTRY, INDEX, KNOWN, Part, table_of, written_of

PART_BYTES = 256 << 20
"""Size at which a part is closed: so much of the work is lost by a kill."""


class UnusableStoreError(DataError):
    """A folder that cannot be written, or has no room."""


@dataclass
class PartWriter:
    """Writes features of so many numbers (``width``) into parts of their own; who calls it holds the lock of the folder."""

    folder: Path
    width: int
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
                self._finish()
        except OSError as error:
            self._failure = self._failure or error
            self.close()
            self.refuse_unwritten()

    def close(self) -> None:
        """Close the part with all that is whole, whatever happened; ``refuse_unwritten`` says what could not be written."""
        try:
            self._finish()
        except OSError as error:
            self._failure = self._failure or error
            self._abandon()

    def refuse_unwritten(self) -> None:
        """Raise ``UnusableStoreError`` where the folder did not take something."""
        if (error := self._failure) is not None:
            raise UnusableStoreError(
                f"features cannot be written into {self.folder}: {error.strerror or error}. What is whole is kept: make room"
                " there, and start again, or choose another folder (--encoders.NAME.features FOLDER)"
            ) from error

    def _begin(self) -> None:
        self._path = self.folder / f"{secrets.token_hex(8)}{DATA}"
        self._file, self._end, self._entries = self._path.open("xb", buffering=0), 0, []

    def _finish(self) -> None:
        """Close the part, and write its index. Raises ``OSError``."""
        if self._file is None:
            return
        self._file.truncate(self._end)  # half of one, where there was no more room
        os.fsync(self._file.fileno())
        if not self._entries:
            self._abandon()
            return
        written = written_of(os.fstat(self._file.fileno()))
        entries, known = table_of(self._entries, ENTRY), np.empty(0, KNOWN)
        Part(self._path.with_suffix(INDEX), self._dtype, self.width, entries, known, written).write_index()
        self._file.close()
        self._file = None

    def _abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._file = None


def _write_all(file: Any, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]
