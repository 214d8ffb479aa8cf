"""Files that rows name: regular ones below the roots of a run, links followed. Nothing is opened here, and nothing ever fetched."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG

from mt_core.errors import show_value
from mt_train.data.media.rules import IRREGULAR, LARGE, MISSING, OUTSIDE, URL, MediaError, MediaRules

_FILE = "file://"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SHOWN = 80


def find_file(name: str, rules: MediaRules, place: str) -> str:
    """Return the real path of a file that a row names. Raises ``MediaError``, also for one that is too large."""
    path, size = resolve_file(name, rules, place)
    refuse_size(size, rules, f"{place} names {_show(name)}, which has", path)
    return path


def resolve_file(name: str, rules: MediaRules, place: str) -> tuple[str, int]:
    """Return the real path of a regular file below one of the roots, and its bytes. Raises ``MediaError``.

    Relative names are looked for below each root in turn. The path has no link in it, so that what is read later is what was checked
    here. ``file://`` in front of a path is left out; any other address is refused.
    """
    local, roots = name.removeprefix(_FILE), rules.roots
    other_root = f", or set {rules.root_option}" if rules.root_option else ""
    if _SCHEME.match(local):
        raise MediaError(
            f"{place} is the URL {_show(name)}; URLs of rows are never fetched. Write the path of a file below {_list(roots)}.",
            URL,
        )
    tried = tuple(os.path.join(root, local) for root in roots)
    allowed, is_outside = _real_roots(tuple(os.path.abspath(os.path.expanduser(root)) for root in roots)), False
    for root in allowed:
        try:
            path = os.path.realpath(os.path.join(root, local))
            if not _is_below(path, allowed):
                is_outside = True
                continue
            found = os.stat(path)
        except (OSError, ValueError):  # ValueError: a zero byte, or half a character
            continue
        if S_ISREG(found.st_mode):
            return path, found.st_size
        raise MediaError(
            f"{place} names {_show(name)}, which is no regular file. Name a file, or drop the row.", IRREGULAR, tried
        )
    if is_outside:
        raise MediaError(
            f"{place} names {_show(name)}, which lies outside {_list(roots)}, links followed. Move the file there{other_root}.",
            OUTSIDE,
            tried,
        )
    raise MediaError(
        f"{place} names {_show(name)}, and there is no such file below {_list(roots)}. Repair the path{other_root}.",
        MISSING,
        tried,
    )


def refuse_size(size: int, rules: MediaRules, what: str, path: str = "") -> None:
    """Raise ``MediaError`` where so many bytes are too many. ``what`` begins the message: the place, and a verb; ``path`` has them."""
    if size > rules.max_bytes:
        raise MediaError(
            f"{what} {size:,} bytes; at most {rules.max_bytes:,} bytes are read. Make it smaller, or drop the row.",
            LARGE,
            (path,) if path else (),
        )


@lru_cache(maxsize=16)
def _real_roots(roots: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(root) for root in roots))


def _is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


def _list(roots: Sequence[Path]) -> str:
    return " or ".join(map(str, roots)) or "a root (the run has none)"


def _show(name: str) -> str:
    return show_value(name, _SHOWN)
