"""``mt-data clean``: removes what the token cache no longer needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import expanduser
from pathlib import Path
from typing import Any

from mt_core.errors import UsageError
from mt_core.files import cache_root, is_remote
from mt_core.tracking.logs import notice
from mt_train.checkpoint.files import amount
from mt_train.config.names import expand
from mt_train.data.cache_pruning import StaleKey, find_stale_keys, stale_references
from mt_train.data.file_hashes import old_hashes
from mt_train.tracking.logs import show

DAYS = 30
_DAY_SECONDS = 86_400


def clean_cache(raw: Mapping[str, Any], *, older_than: str, yes: bool) -> int:
    """Show, or with ``yes`` remove, keys that were not used for so many days. Raises ``MtError``."""
    days, root = _days(older_than), _root(raw)
    found = find_stale_keys(root) if root.is_dir() else []
    old = [each for each in found if each.idle_seconds >= days * _DAY_SECONDS]
    used = [each for each in old if each.is_used]
    going = [each for each in old if each not in used]
    show(
        f"token cache {root.absolute()}: {_count_keys(found)}, of which {_count_keys(old)} not used for {days:g} days or more"
    )
    for each in going:
        show(_line(each))
    for each in used:
        notice(f"notice: {each.folder.name} is in use and stays")
    if yes:
        gone = [each for each in going if each.remove()]
        show(f"removed {_count_keys(gone)}")
    elif going:
        show(f"would remove {_count_keys(going)}; --yes removes them")
    # Nobody misses these: they are computed again, and whoever reads one has all of it.
    beside = {
        "remembered hashes, of files that are gone or were not used": old_hashes(root, days * _DAY_SECONDS),
        "measured references, which were not used": stale_references(root, days * _DAY_SECONDS),
    }
    for what, (count, paths) in beside.items():
        if paths:
            show(f"{'removed' if yes else 'would remove'} {len(paths)} of {count} {what}")
        for path in paths if yes else ():
            path.unlink(missing_ok=True)
    return 0


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < float("inf"):
        raise UsageError(f"--older-than takes a number of days, 0 or more, got {text!r}")
    return days


def _root(raw: Mapping[str, Any]) -> Path:
    """The folder that ``data.cache`` names; that of ``auto`` where it names none."""
    section = raw.get("data") or {}
    given = section.get("cache", "auto") if isinstance(section, dict) else section
    if given == "auto":
        return cache_root()
    if not isinstance(given, str):
        raise UsageError(f"data.cache is {given!r} and names no folder; name one with --data.cache FOLDER")
    if is_remote(given):
        raise UsageError(
            f"mt-data clean removes nothing behind an address, got --data.cache {given}; name a folder here"
        )
    root = Path(expanduser(expand(given)))
    if not root.is_dir():
        raise UsageError(f"data.cache={given}: there is no such folder; name the one that the runs use")
    return root


def _count_keys(found: Sequence[StaleKey]) -> str:
    number = "1 set of rows" if len(found) == 1 else f"{len(found)} sets of rows"
    return f"{number} ({amount(sum(each.size for each in found))})"


def _line(each: StaleKey) -> str:
    days = each.idle_seconds / _DAY_SECONDS
    what = "" if each.is_whole else "  never finished"
    return f"{amount(each.size):>14}  {days:>7,.1f} days  {each.folder.name}{what}"
