"""A file that a run writes but can do without: when it cannot be written, training goes on."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from mt_core.files.writing import open_regular
from mt_core.tracking.logs import notice

MOST_WAITING = 100_000
"""Pieces that wait in memory for a disk with space; beyond that the oldest are given up."""


class Appender:
    """Appends whole pieces. What cannot be written waits, and is tried again with the next piece.

    One warning says that writing has failed, one notice that it works again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: deque[bytes] = deque(maxlen=MOST_WAITING)
        self._failing = False

    def append(self, piece: bytes) -> None:
        """Write what waits and this piece, or remember it."""
        self._waiting.append(piece)
        self._catch_up()

    def close(self) -> None:
        """Try once more what still waits; say how much of it is lost."""
        if self._waiting:
            self._catch_up()
        if self._waiting:
            notice(f"warning: {self.path} lacks the last {len(self._waiting):,} entries, which could not be written")

    def _catch_up(self) -> None:
        try:
            self._write(b"".join(self._waiting))
        except OSError as error:
            if not self._failing:
                notice(
                    f"warning: {self.path} cannot be written: {error.strerror or error}; training goes on, and what is"
                    " missing there is written as soon as it can be"
                )
            self._failing = True
            return
        self._waiting.clear()
        if self._failing:
            notice(f"notice: {self.path} can be written again, and holds what was missing")
        self._failing = False

    def _write(self, content: bytes) -> None:
        """All or nothing: half a record would spoil the next one."""
        self.path.parent.mkdir(exist_ok=True)
        with open(self.path, "ab", buffering=0, opener=open_regular) as file:
            whole, rest = os.fstat(file.fileno()).st_size, content
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(whole)
                raise
