"""Files that rows name and that nothing reads again, though the rows were encoded by them: how they were, and which is another now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from mt_core.rows import Row
from mt_train.data.media.archives import archive_of
from mt_train.data.media.rules import MediaError, MediaRules
from mt_train.data.texts import texts_in


def files_of(error: BaseException | None) -> tuple[str, ...]:
    """Return the files that a fault, or what it was raised from, depends on; those that would be there instead of a missing one too."""
    while error is not None:
        if isinstance(error, MediaError) and error.files:
            return error.files
        error = error.__cause__
    return ()


def archives_in(row: Row, rules: MediaRules) -> set[str]:
    """Return the archives that a row names members of: their content is in the samples, so that no archive is looked at again."""
    found = set()
    for name in texts_in(dict(row)):
        try:
            found.add(archive_of(name, rules, ""))
        except MediaError:  # the row is a bad one, and its fault says on which files that depends
            continue
    return found - {""}


def stamp(paths: Iterable[str]) -> dict[str, str]:
    """Return size and time of each file, nothing for one that is not there. Not its inode: several machines may see one folder."""
    return {path: _stamp(path) for path in paths}


def find_changed(stamps: Mapping[str, str]) -> str:
    """Return the first file that is another one than it was, or there now, or gone; an empty text where none is."""
    return next((path for path, was in stamps.items() if _stamp(path) != was), "")


def _stamp(path: str) -> str:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: a zero byte, or half a character
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"
