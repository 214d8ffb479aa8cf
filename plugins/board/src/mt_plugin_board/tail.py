"""Files of a run that are followed: each question is answered with the lines that came since the last one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mt_tools.report import open_plain

LINE_FILES = (
    "metrics.jsonl",
    "samples.jsonl",
    "evaluations.jsonl",
    "rollouts.jsonl",
    "alarms.jsonl",
    "events.jsonl",
    "system.jsonl",
)
MOST_BYTES = 32 * 2**20
"""Bytes of a file that are read at once; a line that is longer is left out."""
MARK_BYTES = 64
"""Bytes before a place that must still be there, so that a file that was cut and grew again is not gone on with."""


@dataclass(frozen=True)
class Change:
    """Whole lines that are new in a file. ``is_anew``: what was read of the file before is not in it any more."""

    name: str
    lines: tuple[str, ...]
    is_anew: bool = False
    left_out: int = 0


@dataclass
class _Place:
    """How far a file was read: the file itself, and the next byte."""

    inode: tuple[int, int]
    offset: int = 0
    mark: bytes = b""
    seen: tuple[int, int] = (-1, -1)
    skips: bool = False


class Tail:
    """Follows files that grow by lines, and are replaced by another file where a run goes on from an earlier step.

    Nothing is kept open, no link is followed, and half a line waits until it is whole. ``last_bytes`` begins near the end of a file.
    """

    def __init__(self, folder: Path, names: Collection[str] = LINE_FILES, *, last_bytes: int | None = None) -> None:
        self.folder = folder
        self.names = list(names)
        self.is_behind = False
        self._last_bytes = last_bytes
        self._places: dict[str, _Place] = {}

    def changes(self) -> list[Change]:
        """Return what is new. Raises ``OSError`` where the folder is gone or cannot be read; ``is_behind`` where there is more."""
        os.stat(self.folder)
        self.is_behind = False
        return list(self._changes())

    def _changes(self) -> Iterator[Change]:
        for name in self.names:
            if (change := self._change(name)) is not None:
                yield change

    def _change(self, name: str) -> Change | None:
        path, place = self.folder / name, self._places.get(name)
        try:
            now = os.lstat(path)
        except FileNotFoundError:
            return None if self._places.pop(name, None) is None else Change(name, (), is_anew=True)
        if (
            place is not None
            and place.seen == (now.st_size, now.st_mtime_ns)
            and place.inode == (now.st_dev, now.st_ino)
        ):
            return None
        file = open_plain(path)
        if file is None:
            return None if self._places.pop(name, None) is None else Change(name, (), is_anew=True)
        with file:
            return self._read(name, file, place)

    def _read(self, name: str, file: BinaryIO, place: _Place | None) -> Change | None:
        now = os.fstat(file.fileno())
        inode = (now.st_dev, now.st_ino)
        is_anew = place is not None and not (
            place.inode == inode and now.st_size >= place.offset and _fits(file, place)
        )
        if place is None or is_anew:
            place = self._places[name] = _Place(inode)
            if self._last_bytes is not None and now.st_size > self._last_bytes:
                place.offset, place.skips = now.st_size - self._last_bytes, True
        file.seek(place.offset)
        content = file.read(MOST_BYTES)
        left_out = 0
        whole = content.rfind(b"\n") + 1
        if not whole and len(content) == MOST_BYTES:  # a line without an end in sight
            place.skips, whole, content = True, len(content), b""
        elif whole and place.skips:
            content, left_out, place.skips = content[content.find(b"\n") + 1 : whole], 1, False
        else:
            content = content[:whole]
        place.offset += whole
        place.seen = (now.st_size, now.st_mtime_ns)
        if place.offset < now.st_size and whole:
            self.is_behind, place.seen = True, (-1, -1)
        file.seek(max(0, place.offset - MARK_BYTES))
        place.mark = file.read(min(MARK_BYTES, place.offset))
        lines = tuple(line.decode("utf-8", errors="replace") + "\n" for line in content.split(b"\n")[:-1])
        return Change(name, lines, is_anew, left_out) if lines or is_anew or left_out else None


def _fits(file: BinaryIO, place: _Place) -> bool:
    """Return whether what stands before a place is what stood there."""
    file.seek(place.offset - len(place.mark))
    return file.read(len(place.mark)) == place.mark


def status_of(path: Path) -> tuple[int, int, int] | None:
    """Return by what a file tells that it is another one: inode, size and time; ``None`` where there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
