"""The folder of a token cache: its index, its files, what is wrong with it, and how it is put together from chunks.

``chunk-NUMBER`` (``chunk_files.py``) are mapped and read as one (``chunked_columns.py``), beside ``hashes``, ``known`` and the index
``meta.json``, which has the size and the hash of every other file, and of itself. Until that is written the folder is called
``KEY.building``.
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import ComponentError, DataError
from mt_core.files.writing import replace_file
from mt_train.data.chunk_files import HASH, ChunkHead, is_intact, map_chunk, read_head
from mt_train.data.chunked_columns import join_columns
from mt_train.data.chunks import chunk_name, is_chunk
from mt_train.data.columns import is_column
from mt_train.data.encoding import Rules, refuse_bad_rows
from mt_train.data.locks import folder_held, lock_of, share
from mt_train.data.measures import count_duplicates
from mt_train.data.media.named_files import find_changed
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples

META, PLAN = "meta.json", "plan.json"
"""The index; and while chunks are made how many there are, and hashes of what the key is made of, by name."""
HASHES, KNOWN, FINGERPRINT = "hashes", "known", "fingerprint"
"""64 bits of each sample (``measures.sample_hashes``), and the same in order: with them equal rows are found without reading tokens."""

_PIECE = 1 << 20
"""Bytes that are read at once for a checksum."""


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
    _write(building / PLAN, seal(json.dumps({"chunks": chunks, "made_of": dict(made_of)})))


def finish(folder: Path, rules: Rules, made_of: Mapping[str, str]) -> RowStatistics:
    """Write the index of all chunks, without reading a token or writing one again, and call the folder by its key.

    Raises ``DataError`` when chunks are missing, or all of them together have too many bad rows.
    """
    building = building_of(folder)
    heads = _heads(building, _planned(folder, made_of))
    report = RowStatistics.total([head.report for head in heads])
    refuse_bad_rows(report, rules)
    report.hashes = np.empty(0, HASH) if report.hashes is None else report.hashes  # of no chunk at all
    index = {chunk_name(number): [head.size, head.digest, dict(head.counts)] for number, head in enumerate(heads)}
    count_duplicates(EncodedSamples(_columns(building, index), report))
    for name, values in ((HASHES, report.hashes), (KNOWN, report.known)):
        _write(building / name, np.asarray(values, HASH).tobytes())
    told = {"report": report.as_dict(), "chunks": index}
    told["files"] = {name: list(checksum(building / name)) for name in (HASHES, KNOWN)}
    _write(building / META, seal(json.dumps(told)))
    for path in building.iterdir():  # leases of those who were killed, halves of files, chunks of an older plan
        if path.name not in {META, HASHES, KNOWN, *index}:
            path.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    return report


def _planned(folder: Path, made_of: Mapping[str, str]) -> int:
    """Return how many chunks the rows have. Raises ``DataError`` where nobody has encoded one, with what others were made of."""
    try:
        return int(_unseal((building_of(folder) / PLAN).read_bytes())["chunks"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    others = []
    for path in sorted(folder.parent.glob(f"*.building/{PLAN}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            theirs = _unseal(path.read_bytes())["made_of"]
            names = [name for name in {**theirs, **made_of} if theirs.get(name) != made_of.get(name)]
            others.append(f"\n  {path.parent.name} is of another {', '.join(names)}")
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


def checksum(path: Path) -> tuple[int, int]:
    """Bytes of a file, and their CRC-32: it tells every flipped bit and every torn page, and costs a third of a SHA-256."""
    size = value = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            size, value = size + len(piece), zlib.crc32(piece, value)
    return size, value


def seal(text: str) -> bytes:
    """A line of JSON, and a line with its CRC-32."""
    line = text.encode() + b"\n"
    return line + b"%08x\n" % zlib.crc32(line)


def _unseal(content: bytes) -> dict[str, Any]:
    """Return what was sealed. Raises ``ValueError`` when it is something else."""
    line, newline, seal = content.partition(b"\n")
    if seal != b"%08x\n" % zlib.crc32(line + newline):
        raise ValueError("the last line is not the checksum of the first")
    told: dict[str, Any] = json.loads(line)
    return told


def _write(path: Path, content: bytes) -> None:
    with replace_file(path, durable=True, by_many=True) as file:
        file.write(content)


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
        meta = _unseal((folder / META).read_bytes())
        report = RowStatistics.from_dict(meta["report"])
        report.hashes, report.known = hashes, known = [_numbers(folder / name) for name in (HASHES, KNOWN)]
        samples = EncodedSamples(_columns(folder, meta["chunks"]), report, _fingerprint_of(folder))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise _damage_error(folder) from error
    if not len(samples) == report.samples == len(hashes) or not bool(len(known)) == bool(len(hashes)):
        raise _damage_error(folder)
    return samples


def _numbers(path: Path) -> NDArray[Any]:
    return np.memmap(path, HASH, "r") if path.stat().st_size else np.empty(0, HASH)


def _columns(folder: Path, index: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the columns of all chunks as one. Raises ``ValueError`` for a chunk that is not what the index says."""
    told = {name: counts for name, (_, _, counts) in sorted(index.items()) if counts["ends"] > 1}
    if not told:
        return EncodedSamples().columns
    names = next(iter(told.values())).keys()
    if strange := [name for name in (*index, *names) if not ((name in names and is_column(name)) or is_chunk(name))]:
        raise ValueError(f"{strange} are no columns and no chunks")
    mapped = [map_chunk(folder / name) for name in told]
    for chunk, counts in zip(mapped, told.values(), strict=True):
        if {name: len(values) for name, values in chunk.items()} != counts:
            raise ValueError(f"chunks of {folder} have other columns than the index says")
    if len(mapped) == 1:
        return mapped[0]
    columns = join_columns(mapped)
    return {**columns, "weighted": np.asarray(columns["weighted"])}  # few samples have any, and they are searched


def _fingerprint_of(folder: Path) -> dict[str, Any] | None:
    """Return what tells the rows from others, where somebody has read them all for it. Raises ``ValueError`` for a damaged one."""
    try:
        return _unseal((folder / FINGERPRINT).read_bytes())
    except FileNotFoundError:
        return None


def _with_fingerprint(folder: Path, samples: EncodedSamples) -> EncodedSamples:
    """Return samples that know what tells them from others, and write it down: who opens them first reads all tokens for it."""
    found = samples.fingerprint()
    with suppress(OSError):  # the cache of somebody else
        _write(folder / FINGERPRINT, seal(json.dumps(found)))
    return EncodedSamples(samples.columns, samples.report, found)


def _verify(folder: Path) -> None:
    """Read every file of an opened folder. Raises ``DamagedCacheError`` when one is not what was written."""
    try:
        meta = _unseal((folder / META).read_bytes())
        found = {name: list(checksum(folder / name)) for name in meta["files"]}
        whole = all(is_intact(folder / name, size, digest) for name, (size, digest, _) in meta["chunks"].items())
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise _damage_error(folder) from error
    if found != meta["files"] or not whole:
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
        return len(_unseal((folder / META).read_bytes())["chunks"])
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
