"""Entry points of what is installed, as ``importlib.metadata`` gives them; it is asked only where reading folders could differ.

Importing it and asking it once is half of what a listing costs; docs/decisions/0108-plain-metadata.md says what is plain.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import reduce
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

UNTRIED = (3, 14)
"""First release of Python whose ``importlib.metadata`` this has not been compared with (tests/core/plugins/test_installed.py)."""
_HEAD = re.compile(r"Metadata-Version: [0-9.]+\nName: ([!-~]+)\nVersion: ([!-~]+)\n(?![ \t])")
_SUFFIXES = ("dist-info", "egg-info")
_OBJECT = re.compile(r"[\w.]+(:[\w.]+)?")


class _NotPlainError(Exception):
    """Something that ``importlib.metadata`` has to read, or to refuse."""


class PlainDistribution(NamedTuple):
    """A ``.dist-info`` folder, with what the core asks of a ``Distribution``; ``metadata`` has name and version alone."""

    folder: Path
    metadata: Mapping[str, str]

    @property
    def requires(self) -> list[str] | None:
        """Requirements of the distribution, a line each."""
        from importlib.metadata import Distribution

        return Distribution.at(self.folder).requires

    def read_text(self, name: str) -> str | None:
        """Return the text of a file of the folder; ``None`` where there is none that may be read."""
        return _read(str(self.folder / name))

    def locate_file(self, path: str) -> Path:
        """Return where an installed file is."""
        return self.folder.parent / path


class PlainEntryPoint(NamedTuple):
    """A line of an ``entry_points.txt``, with what the core asks of an ``EntryPoint``."""

    name: str
    value: str
    dist: PlainDistribution

    def load(self) -> Any:
        """Import the module and return it, or what it names there."""
        module, _, names = self.value.partition(":")
        return reduce(getattr, filter(None, names.split(".")), import_module(module))


def entry_points(group: str) -> list[PlainEntryPoint] | list[EntryPoint]:
    """Return the entry points of a group; those of the first of several distributions of one name on ``sys.path``."""
    try:
        return [point for folder in _folders() for point in _points(folder, group)]
    except (_NotPlainError, OSError, ValueError):  # perhaps a zip file; or no UTF-8, which has to be refused
        from importlib import metadata

        return list(metadata.entry_points(group=group))


def _folders() -> Iterator[str]:
    finders = [finder for finder in sys.meta_path if getattr(finder, "find_distributions", None) is not None]
    plain = all(isinstance(root, str) and not root.lower().endswith(".egg") for root in sys.path)
    if sys.version_info >= UNTRIED or finders != [PathFinder] or not plain:
        raise _NotPlainError
    seen: set[str] = set()
    for root in filter(os.path.exists, (each or "." for each in sys.path)):  # python311.zip does not exist
        for child in os.listdir(root):
            stem, _, suffix = child.rpartition(".")
            if suffix.lower() not in _SUFFIXES:
                continue
            name = stem.partition("-")[0].replace(".", "_").lower()
            if not name.strip("_") or "__" in name or not child.isascii() or suffix not in _SUFFIXES:
                raise _NotPlainError
            if name not in seen:
                seen.add(name)
                yield os.path.join(root, child)  # a Path would take longer than all else here


def _points(folder: str, group: str) -> Iterator[PlainEntryPoint]:
    pairs = list(_pairs(_read(os.path.join(folder, "entry_points.txt")) or "", group))
    if not pairs:
        return
    head = _HEAD.match(_read(os.path.join(folder, "METADATA")) or "")
    if head is None:
        raise _NotPlainError
    distribution = PlainDistribution(Path(folder), {"Name": head[1], "Version": head[2]})
    yield from (PlainEntryPoint(name, value, distribution) for name, value in pairs)


def _pairs(text: str, group: str) -> Iterator[tuple[str, str]]:
    """Name and value of each line of a group; lines of other groups have to be as they should, too."""
    section = None
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line.strip("[]")
        elif line and not line.startswith("#") and section is not None:
            name, equals, value = map(str.strip, line.partition("="))
            if not equals or (section == group and not _OBJECT.fullmatch(value)):
                raise _NotPlainError
            if section == group:
                yield name, value


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
        return None
