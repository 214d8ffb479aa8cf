"""Paths to files: one file, all files of a kind below a folder, or those that a pattern matches."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Sequence
from functools import cache
from os.path import expanduser
from pathlib import Path
from typing import NoReturn

from mt_core.errors import DataError
from mt_core.files.remote import is_remote, storage

_ASIDE = (".", "readme", "license", "citation")
"""How files begin that nobody takes for rows."""

_NAMED = 5
"""Files that a message names."""

COMPRESSED = (".gz", ".zst")
"""Suffixes that may stand behind that of the format."""


def suffix_of(path: Path) -> str:
    """Return the suffix of the format in lower case: ``.jsonl`` of ``a.jsonl.gz``."""
    name = Path(path.name.lower())
    return Path(name.stem).suffix if name.suffix in COMPRESSED else name.suffix


def files_of(path: str, *suffixes: str) -> list[Path]:
    """Return the file itself, the files of a pattern, or a folder's files with the first of ``suffixes`` that any has; sorted by path.

    Of an address (``s3://bucket/rows``) they are copies in the cache (``remote.storage``).
    Links to files are followed, links to folders are not; ``**`` in a pattern stands for any folders. Raises
    ``DataError`` with the absolute path when there is no such file, or one that cannot be opened.
    """
    if is_remote(path):
        return storage().remote_files(path, *suffixes, root=cache_root() / "remote")
    start = Path(expanduser(path))
    try:
        if start.is_dir():
            return _files_below(start, suffixes)
        if start.exists():
            return [_require_regular(start)]
        if glob.has_magic(path):
            return _match(start)
    except OSError as error:
        raise DataError(f"{start.absolute()} cannot be read: {error.strerror}. Check its permissions.") from error
    raise DataError(
        f"{start.absolute()} does not exist. Name a file or folder that does; a relative path starts at {Path.cwd()}."
    )


def _files_below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    names = [Path(root, name) for root, _, files in os.walk(folder, onerror=_raise) for name in files]
    for suffix in suffixes:
        if found := [_require_regular(file) for file in names if suffix_of(file) == suffix]:
            _tell_others(folder, suffix, tuple(sorted(set(names) - set(found))))
            return sorted(found, key=Path.as_posix)
    wanted = " or ".join(f"*{suffix}" for suffix in suffixes)
    others = sorted({file.suffix or file.name for file in names})
    raise DataError(
        f"folder {folder.absolute()} has no {wanted} file, only {', '.join(others[:5]) or 'nothing'}. "
        f"Name a folder with {wanted} files, one file of any name, or a pattern such as 'folder/*{suffixes[0]}'."
    )


def _tell_others(folder: Path, suffix: str, others: Sequence[Path]) -> None:
    """Warn of files that are not read, since their suffix is another: they may be texts all the same."""
    names = [str(file.relative_to(folder)) for file in others if not file.name.lower().startswith(_ASIDE)]
    if names:
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        _warn_once(
            f"folder {folder.absolute()} has files that are not read, since a folder stands for its *{suffix} files:"
            f" {', '.join(names[:_NAMED])}{more}. Where they are rows, name all with a pattern, such as '{folder}/*'."
        )


@cache
def _warn_once(message: str) -> None:
    logging.getLogger("mt_core").warning(message)


def _match(pattern: Path) -> list[Path]:
    found = [Path(name) for name in glob.glob(str(pattern), recursive=True)]
    files = [_require_regular(path) for path in found if not path.is_dir()]
    if not files:
        raise DataError(
            f"the pattern {pattern.absolute()} matches no file{', only folders' if found else ''}. Give one that"
            f" does; a relative one starts at {Path.cwd()}, and quotes keep the shell from replacing it."
        )
    return sorted(files, key=Path.as_posix)


def _raise(error: OSError) -> NoReturn:
    """A folder that cannot be listed is an error, not an empty folder."""
    raise error


def _require_regular(path: Path) -> Path:
    if not path.is_file():
        raise DataError(
            f"{path.absolute()} is a broken link or no regular file. Take it out of dataset.path, or repair it."
        )
    return path


def cache_root() -> Path:
    """``MT_CACHE``, else ``~/.cache/mt/tokens``."""
    return Path(os.environ.get("MT_CACHE") or "~/.cache/mt/tokens").expanduser()
