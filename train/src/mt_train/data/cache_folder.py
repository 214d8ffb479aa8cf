"""The folder of a token cache: its files, what is wrong with it, and how it is put together from chunks.

``chunk-NUMBER`` (``chunk_files.py``) are mapped and read as one (``chunked_columns.py``), beside ``hashes``, ``known``, columns of
places and the index ``meta.json`` (``cache_index.py``). Until that is written the folder is called ``KEY.building``.
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mt_core.errors import ComponentError, DataError
from mt_train.data.cache_index import (
    FINGERPRINT,
    HASHES,
    KNOWN,
    META,
    PLAN,
    CacheIndex,
    FileEntry,
    entry_of,
    find_differences,
    read_numbers,
    seal,
    unseal,
    write_durably,
    write_places,
)
from mt_train.data.chunk_files import HASH, ChunkHead, is_intact, map_chunk, read_head
from mt_train.data.chunks import chunk_name
from mt_train.data.encoding import Rules, refuse_bad_rows
from mt_train.data.locks import folder_held, lock_of, share
from mt_train.data.measures import count_duplicates
from mt_train.data.media.named_files import find_changed
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples


class DamagedCacheError(DataError):
    """Rows that are not what was written."""


class OutdatedCacheError(DataError):
    """Rows that would be others now: a file that they name is another."""


def building_of(folder: Path) -> Path:
    """Return where its chunks are while it is made."""
    return folder.with_name(f"{folder.name}.building")


def is_complete(folder: Path) -> bool:
    """Return whether there is something to open."""
    return (folder / META).is_file()


def write_plan(building: Path, chunks: int, made_of: Mapping[str, str]) -> None:
    """Write down how many chunks there will be, and hashes of what the key is made of."""
    write_durably(building / PLAN, seal(json.dumps({"chunks": chunks, "made_of": dict(made_of)})))


def finish(folder: Path, rules: Rules, made_of: Mapping[str, str]) -> RowStatistics:
    """Write the index of all chunks, without reading a token or writing one again, and call the folder by its key.

    Raises ``DataError`` when chunks are missing, or all of them together have too many bad rows.
    """
    building = building_of(folder)
    heads = _heads(building, _planned(folder, made_of))
    report = RowStatistics.total([head.report for head in heads])
    refuse_bad_rows(report, rules)
    report.hashes = np.empty(0, HASH) if report.hashes is None else report.hashes  # of no chunk at all
    chunks = {
        chunk_name(number): FileEntry(head.size, head.digest, dict(head.counts)) for number, head in enumerate(heads)
    }
    index = CacheIndex(report, chunks, {}, made_of)
    mapped = {name: map_chunk(building / name) for name in index.filled}
    names = write_places(building, list(index.filled.values()), list(mapped.values()))
    columns = index.columns(lambda name, dtype: read_numbers(building / name, dtype), mapped.__getitem__)
    count_duplicates(EncodedSamples(columns, report))
    for name, values in ((HASHES, report.hashes), (KNOWN, report.known)):
        write_durably(building / name, np.asarray(values, HASH).tobytes())
    files = {name: entry_of(building / name) for name in (HASHES, KNOWN, *names)}
    CacheIndex(report, chunks, files, made_of).write(building / META)
    for path in building.iterdir():  # leases of those who were killed, halves of files, chunks of an older plan
        if path.name not in {META, *files, *chunks}:
            path.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    return report


def _planned(folder: Path, made_of: Mapping[str, str]) -> int:
    """Return how many chunks the rows have. Raises ``DataError`` where nobody has encoded one, with what others were made of."""
    try:
        return int(unseal((building_of(folder) / PLAN).read_bytes())["chunks"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    others = []
    for path in sorted(folder.parent.glob(f"*.building/{PLAN}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            theirs = unseal(path.read_bytes())["made_of"]
            others.append(f"\n  {path.parent.name} is of another {', '.join(find_differences(theirs, made_of))}")
    raise DataError(
        f"no part of these rows is in {folder.parent}: there is no {building_of(folder).name}. Encode all parts with the same options,"
        f" files and code, then finish{'; parts that are there:' if others else ''}{''.join(others)}"
    )


def _heads(building: Path, count: int) -> list[ChunkHead]:
    """Return the heads of all chunks. Raises ``DataError`` where some are missing, and ``ComponentError`` where columns differ."""
    heads, missing = [], []
    for number in range(count):
        try:
            heads.append(read_head(building / chunk_name(number)))
        except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError):
            missing.append(number)
    if missing:
        some = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
        raise DataError(
            f"{len(missing)} of {count} chunks are missing in {building} ({some}): chunk c is of part c modulo the number of parts."
            " Encode those parts again, with --part, then finish; what is there is kept"
        )
    names = [head.counts.keys() for head in heads if head.samples]
    if strange := next((each for each in names if each != names[0]), None):
        raise ComponentError(
            f"the objective gives some samples with {sorted(names[0] ^ strange)}, and others without; all samples have"
            " documents or none, and values of the same names"
        )
    return heads


def use(folder: Path) -> EncodedSamples | None:
    """The samples of a folder, which `mt-data clean` leaves alone as long as they live; ``None`` when it is not complete.

    That it is used is remembered by the time of its meta file. Every byte is read once. Raises ``DamagedCacheError``, and
    ``OutdatedCacheError``.
    """
    if not is_complete(folder):
        return None
    lock = share(lock_of(folder))
    try:
        if not is_complete(folder):  # removed before it was locked
            return None
        _verify(folder)
        samples = open_samples(folder)
        _refuse_outdated(folder, samples)
        if not (folder / FINGERPRINT).exists():
            samples = _with_fingerprint(folder, samples)
        with suppress(OSError):  # the cache of somebody else
            os.utime(folder / META)
        if lock is not None:
            weakref.finalize(samples, os.close, lock)
            lock = None
        return samples
    finally:
        if lock is not None:
            os.close(lock)


def open_samples(folder: Path) -> EncodedSamples:
    """The samples of a complete folder, mapped: nothing is read before it is used. Raises ``DamagedCacheError`` where that shows."""
    try:
        index = CacheIndex.parse((folder / META).read_bytes())
        return index.samples(
            lambda name, dtype: read_numbers(folder / name, dtype),
            lambda name: map_chunk(folder / name),
            _fingerprint_of(folder),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise _damage_error(folder) from error


def _fingerprint_of(folder: Path) -> dict[str, Any] | None:
    """Return what tells the rows from others, where somebody has read them all for it. Raises ``ValueError`` for a damaged one."""
    try:
        return unseal((folder / FINGERPRINT).read_bytes())
    except FileNotFoundError:
        return None


def _with_fingerprint(folder: Path, samples: EncodedSamples) -> EncodedSamples:
    """Return samples that know what tells them from others, and write it down: who opens them first reads all tokens for it."""
    found = samples.fingerprint()
    with suppress(OSError):  # the cache of somebody else
        write_durably(folder / FINGERPRINT, seal(json.dumps(found)))
    return EncodedSamples(samples.columns, samples.report, found)


def _verify(folder: Path) -> None:
    """Read every file of an opened folder. Raises ``DamagedCacheError`` when one is not what was written."""
    try:
        index = CacheIndex.parse((folder / META).read_bytes())
        whole = all(entry_of(folder / name) == entry for name, entry in index.files.items())
        whole = whole and all(is_intact(folder / name, each.size, each.digest) for name, each in index.chunks.items())
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise _damage_error(folder) from error
    if not whole:
        raise _damage_error(folder)


def discard(folder: Path) -> None:
    """Take back a folder that is damaged or outdated still when nobody else looks at it; those who have opened it keep what they have.

    Its chunks are those of a cache that is made again, so that only what is wrong is encoded anew. Its lock goes, since they hold it.
    Raises ``OSError``.
    """
    with suppress(FileNotFoundError), folder_held(folder) as is_there:
        if not is_there or _is_usable(folder):
            return
        count = _count_again(folder)
        (folder / META).unlink()  # first: without it the rest counts for nothing
        lock_of(folder).unlink(missing_ok=True)
        if count is None or building_of(folder).exists():
            shutil.rmtree(folder)
            return
        (folder / FINGERPRINT).unlink(missing_ok=True)
        write_plan(folder, count, {})
        folder.rename(building_of(folder))


def _count_again(folder: Path) -> int | None:
    """Return how many chunks a folder has had; ``None`` where its index does not say."""
    try:
        return len(unseal((folder / META).read_bytes())["chunks"])
    except (ValueError, KeyError, TypeError):
        return None


def _is_usable(folder: Path) -> bool:
    try:
        _refuse_outdated(folder, open_samples(folder))
        _verify(folder)
    except (DamagedCacheError, OutdatedCacheError):
        return False
    return True


def _refuse_outdated(folder: Path, samples: EncodedSamples) -> None:
    if changed := find_changed(samples.report.named_files):
        raise OutdatedCacheError(f"{changed} is another than it was when {folder}, of the token cache, was made")


def _damage_error(folder: Path) -> DamagedCacheError:
    return DamagedCacheError(f"{folder}, of the token cache, is damaged")
