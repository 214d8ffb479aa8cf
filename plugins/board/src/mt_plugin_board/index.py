"""All runs and searches of some folders, a line each."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core import MtError

from .glance import BLOCK_BYTES, Glance
from .reader import RunReader
from .scan import Found, roots_of, scan

SCAN_SECONDS = 5.0
"""Time between two looks for new runs."""
SCAN_BYTES_A_TICK = 64 * BLOCK_BYTES
"""Bytes in which evaluations of long runs are looked for, before the lines that are known are told."""
MOST_READERS = 24
"""Runs that are kept in memory, the ones used last."""
MOST_COMPARED = 16
"""Runs on one page."""


class UnknownRunError(MtError):
    """A run or a search that is not there."""


class Index:
    """The runs of some folders. Several threads ask; each look at the disk serves all of them."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises ``UsageError`` for a path that is no folder."""
        self._roots = roots_of(folders)
        self._lock = threading.Lock()
        self._found = Found()
        self._scanned = self._refreshed = float("-inf")
        self._glances: dict[str, Glance] = {}
        self._problems: dict[str, str] = {}
        self._version = 0
        self._changed: dict[str, int] = {}
        self._readers: OrderedDict[str, RunReader] = OrderedDict()

    @property
    def title(self) -> str:
        """The names of the folders."""
        return ", ".join(self._roots)

    def readers(self, identifiers: Sequence[str]) -> list[RunReader]:
        """Return what reads some runs. Raises ``UnknownRunError`` for a run that is not there, or where there are too many."""
        wanted = list(dict.fromkeys(identifiers))
        if not 1 <= len(wanted) <= MOST_COMPARED:
            raise UnknownRunError(f"{len(wanted)} runs are named; a page shows 1 to {MOST_COMPARED}")
        with self._lock:
            self._scan(time.monotonic())
            return [self._reader(identifier) for identifier in wanted]

    def search(self, identifier: str) -> Path:
        """Return the folder of a search. Raises ``UnknownRunError``."""
        with self._lock:
            self._scan(time.monotonic())
            if identifier not in self._found.searches:
                raise UnknownRunError(f"no search {identifier[:200]!r} is there")
            return self._found.searches[identifier]

    def rows_since(self, version: int) -> tuple[int, Mapping[str, Any]]:
        """Return the version that is shown, and what has changed since another: lines, and names of those that went."""
        with self._lock:
            self._refresh(time.monotonic())
            rows = [
                glance.row | {"name": self._name(name), "problem": self._problems.get(name, "")}
                for name, glance in self._glances.items()
                if self._changed.get(name, 0) > version
            ]
            gone = [name for name, at in self._changed.items() if at > version and name not in self._glances]
            content: dict[str, Any] = {"rows": rows, "gone": gone} if rows or gone else {}
            if self._changed.get("", 0) > version:
                content |= {
                    "searches": {name: self._name(name) for name in self._found.searches},
                    "remarks": self._found.remarks,
                }
            return self._version, content

    # ------------------------------------------------------------------------------------------ with the lock held

    def _reader(self, identifier: str) -> RunReader:
        if identifier not in self._found.runs:
            self._readers.pop(identifier, None)
            raise UnknownRunError(f"no run {identifier[:200]!r} is there; it may have been removed or moved")
        reader = self._readers.pop(identifier, None)
        if reader is None:
            reader = RunReader(identifier, self._found.runs[identifier], self._name(identifier))
        self._readers[identifier] = reader
        while len(self._readers) > MOST_READERS:
            self._readers.popitem(last=False)
        return reader

    def _name(self, identifier: str) -> str:
        """Return the name on a page: without the given folder where there is one alone."""
        return identifier if len(self._roots) > 1 else identifier.partition("/")[2] or identifier

    def _scan(self, now: float) -> None:
        if now - self._scanned < SCAN_SECONDS:
            return
        self._scanned = now
        before, self._found = self._found, scan(self._roots)
        for name in self._glances.keys() - self._found.runs.keys():
            del self._glances[name]
            self._change(name)
        for name in self._found.runs.keys() - self._glances.keys():
            self._glances[name] = Glance(name, self._found.runs[name])
            self._change(name)
        if self._version == 0 or (before.searches, before.remarks) != (self._found.searches, self._found.remarks):
            self._change("")

    def _change(self, name: str) -> None:
        self._version += 1
        self._changed[name] = self._version

    def _refresh(self, now: float) -> None:
        if now - self._refreshed < 0.4:
            return
        self._scan(now)
        first = self._refreshed == float("-inf")
        moment = time.time()
        for name, glance in self._glances.items():
            try:
                changed, problem = glance.refresh(moment), ""
            except OSError as error:
                changed, problem = False, f"cannot be read: {error.strerror}"
            if changed or problem != self._problems.get(name, ""):
                self._problems[name] = problem
                self._change(name)
        if not first:
            self._look_for_evaluations()
        self._refreshed = time.monotonic()

    def _look_for_evaluations(self) -> None:
        """Read on in files that were not read to their end, a little at a time: the page need not wait for it."""
        left = SCAN_BYTES_A_TICK
        for glance in self._glances.values():
            while left > 0 and not glance.is_scanned:
                left -= BLOCK_BYTES
                try:
                    glance.scan_on()
                except OSError:
                    glance.is_scanned = True
