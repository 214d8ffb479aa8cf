"""Runs and searches below some folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mt_core import UsageError
from mt_tools.report import CONFIG

SEARCH = "search.yaml"
DEEPEST = 5
"""Folders below a given one, counted downwards, in which runs are looked for."""
MOST_FOLDERS = 20_000
"""Folders that are looked into; a whole disk is no folder of runs."""
PASSED_OVER = frozenset({"checkpoints", "tensorboard", "__pycache__"})
"""Folders in which no run is. Any other name may be that of a run, also ``logs`` and ``eval``."""


@dataclass
class Found:
    """Runs and searches by the name that they have on the page and in links, and what stood in the way."""

    runs: dict[str, Path] = field(default_factory=dict)
    searches: dict[str, Path] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def roots_of(given: Sequence[Path]) -> Mapping[str, Path]:
    """Return the folders by short names that differ. Raises ``UsageError`` for one that is none."""
    roots: dict[str, Path] = {}
    for path in given:
        if not path.is_dir():
            problem = "is a file" if path.exists() else "does not exist"
            raise UsageError(f"{path} {problem}; give folders of runs, as in: mt-board runs")
        place = path.resolve()
        if place in roots.values():
            continue
        name, number = _printable(place.name) or "runs", 2
        while name in roots:
            name, number = f"{_printable(place.name) or 'runs'}~{number}", number + 1
        roots[name] = place
    return roots


def scan(roots: Mapping[str, Path]) -> Found:
    """Look for runs (``run.yaml``) and searches (``search.yaml``). No link is followed; what cannot be read is a remark."""
    found = Found()
    left = MOST_FOLDERS
    for name, root in roots.items():
        pending = [(name, root, 0)]
        while pending:
            if not left:
                found.remarks.append(f"only {MOST_FOLDERS:,} folders were looked into; give folders nearer to the runs")
                return found
            left -= 1
            title, folder, depth = pending.pop()
            pending += [
                (f"{title}/{_printable(path.name)}", path, depth + 1) for path in _look(found, title, folder, depth)
            ]
    return found


def _look(found: Found, title: str, folder: Path, depth: int) -> Iterator[Path]:
    """Take in a folder, and yield those in which others may be: none in a run."""
    try:
        with os.scandir(folder) as listed:
            entries = list(listed)
    except OSError as error:
        found.remarks.append(f"{folder} cannot be read: {error.strerror}")
        return
    files = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    if CONFIG in files:
        found.runs[title] = folder
        return
    if SEARCH in files:
        found.searches[title] = folder
    if depth < DEEPEST:
        for entry in entries:
            if entry.name not in PASSED_OVER and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _printable(name: str) -> str:
    """Return a name of a folder as a link can hold it: bytes that are no UTF-8 as ``\\xff``."""
    return os.fsencode(name).decode("utf-8", errors="backslashreplace")
