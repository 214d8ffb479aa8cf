"""The token cache: encoded rows in files, in a folder whose name is a hash of everything that they follow from.

``KEY/meta.json``, ``hashes``, ``known`` and a file for each column (``data/samples.py``), mapped into memory. While it is made,
``KEY.building`` holds chunks, and ``KEY.lock`` is held by the one process that makes it (``locks.py``); others wait for it.
A kill loses a chunk. ``meta.json`` has the size and the CRC-32 of every other file, and of itself: they are read once, when a
process begins to use the rows, and rows that are not what was written are encoded anew.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import ComponentError, DataError
from mt_core.model_protocols import Objective
from mt_core.protocols import Dataset
from mt_train.data.chunks import Progress, Work, encode_chunks, read_chunk
from mt_train.data.columns import COLUMNS, ENDS, dtype_of, is_column
from mt_train.data.encoding import Rules, refuse_bad_rows
from mt_train.data.locks import folder_held, hold_lock, lock_of, share
from mt_train.data.measures import count_duplicates
from mt_train.data.media.named_files import find_changed
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples

META = "meta.json"
HASHES, KNOWN, HASH = "hashes", "known", np.dtype("<u8")
"""64 bits of each sample (``measures.sample_hashes``), and the same in order: with them equal rows are found without reading tokens."""

_PIECE = 1 << 20
"""Bytes that are read at once for a checksum."""


class UnusableCacheError(DataError):
    """A folder that cannot be written, or knows no locks."""


class DamagedCacheError(DataError):
    """Rows that are not what was written."""


class OutdatedCacheError(DataError):
    """Rows that would be others now: a file that they name is another."""


Open = Callable[[], tuple[Dataset, Sequence[int] | NDArray[Any]]]
"""Opens a source: its rows, and the indices of those that are wanted."""


@dataclass(frozen=True)
class TokenCache:
    """A folder of encoded splits. ``say`` tells a person what takes long; ``progress`` shows how far it is."""

    root: Path
    workers: int
    say: Callable[[str], None]
    progress: Callable[[], AbstractContextManager[Progress]]

    def samples(
        self, key: str, source: Open, objective: Objective, rules: Rules, check: Callable[[], None] = lambda: None
    ) -> EncodedSamples:
        """The split of this key, made where it is not there; ``check`` is called before what was made is kept.

        Raises ``DataError`` for a bad row, ``UnusableCacheError`` for a folder that cannot be used.
        """
        folder = self.root / key
        try:
            while (samples := self._use(folder)) is None:
                self.root.mkdir(parents=True, exist_ok=True)
                with hold_lock(lock_of(folder), self.say):
                    if not is_complete(folder):
                        self._make(folder, source, objective, rules, check)
        except OSError as error:
            raise UnusableCacheError(
                f"the token cache {self.root} cannot be written: {error.strerror or error}. Choose another folder with"
                " --data.cache FOLDER (or MT_CACHE), or keep tokens in memory: --data.cache none"
            ) from error
        refuse_bad_rows(samples.report, rules)  # whoever made it may have skipped them
        return samples

    def _use(self, folder: Path) -> EncodedSamples | None:
        """The split, if it is there; one that is damaged or outdated is told, and removed."""
        try:
            return use(folder)
        except (DamagedCacheError, OutdatedCacheError) as error:
            kind = "warning" if isinstance(error, DamagedCacheError) else "notice"
            self.say(f"{kind}: {error}; its rows are encoded anew")
            discard(folder)
            return None

    def _make(self, folder: Path, source: Open, objective: Objective, rules: Rules, check: Callable[[], None]) -> None:
        dataset, indices = source()
        building = building_of(folder)
        building.mkdir(exist_ok=True)
        work = Work(dataset, indices, objective, rules, building)
        with self.progress() as progress:
            encode_chunks(work, workers=self.workers, progress=progress)
        check()
        whole = building / "whole"
        shutil.rmtree(whole, ignore_errors=True)  # half of one, of a process that was killed
        whole.mkdir()
        merge([work.path(number) for number in range(len(work))], whole, rules)
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)
        shutil.rmtree(building)


def building_of(folder: Path) -> Path:
    """Return where its chunks are while it is made."""
    return folder.with_name(f"{folder.name}.building")


def is_complete(folder: Path) -> bool:
    """Return whether there is something to open."""
    return (folder / META).is_file()


def merge(chunks: Sequence[Path], folder: Path, rules: Rules) -> None:
    """Write the chunks as one set of columns. The meta file comes last: with it the folder is complete.

    Raises ``DataError`` when all of them together have too many bad rows.
    """
    reports: list[RowStatistics] = []
    totals, files = dict[str, int](), dict[str, BinaryIO]()
    try:
        _open_columns(COLUMNS.keys(), folder, files, totals)
        for path in chunks:
            chunk = read_chunk(path)
            if chunk is None:
                raise DataError(f"{path} was damaged while the token cache was made; start again")
            if len(chunk) and not totals["ends"]:
                _open_columns(chunk.names, folder, files, totals)
            if len(chunk) and chunk.names != files.keys():
                raise ComponentError(
                    f"the objective gives some samples with {sorted(files.keys() ^ chunk.names)}, and others without; all samples have"
                    " documents or none, and values of the same names"
                )
            _append(chunk, files, totals)
            reports.append(chunk.report)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()
    report = RowStatistics.total(reports)
    refuse_bad_rows(report, rules)
    report.hashes = np.empty(0, HASH) if report.hashes is None else report.hashes  # of no chunk at all
    samples = EncodedSamples(_map_columns(folder, files), report)
    count_duplicates(samples)
    for name, values in ((HASHES, report.hashes), (KNOWN, report.known)):
        _write(folder / name, np.asarray(values, HASH).tobytes())
    told = {"report": report.as_dict(), "fingerprint": samples.fingerprint()}
    told["files"] = {name: list(checksum(folder / name)) for name in (*files, HASHES, KNOWN)}
    _write(folder / META, seal(json.dumps(told)))


def _open_columns(names: Set[str], folder: Path, files: dict[str, BinaryIO], totals: dict[str, int]) -> None:
    """Begin the files of those columns that have none yet."""
    for name in sorted(names - files.keys()):
        files[name], totals[name] = (folder / name).open("wb"), 0
        if name in ENDS:
            files[name].write(np.zeros(1, dtype_of(name)).tobytes())


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
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _append(chunk: EncodedSamples, files: Mapping[str, BinaryIO], totals: dict[str, int]) -> None:
    """Write a chunk's columns after those before it; offsets and numbers go on from theirs."""
    columns = chunk.columns
    shifts = {name: totals[target] for name, target in ENDS.items() if target in totals} | {"weighted": totals["ends"]}
    for name, values in columns.items():
        values = values[1:] if name in ENDS else values
        shifted = values + shifts[name] if name in shifts else values
        files[name].write(np.ascontiguousarray(shifted, dtype=dtype_of(name)).data)
        totals[name] += len(values)


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
        samples = open_samples(folder)
        _verify(folder)
        _refuse_outdated(folder, samples)
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
        names = meta["files"].keys() - {HASHES, KNOWN}
        if strange := [name for name in names if not is_column(name)]:
            raise ValueError(f"{strange} are no columns")
        columns = _map_columns(folder, names)
        report = RowStatistics.from_dict(meta["report"])
        report.hashes, report.known = hashes, known = [_column(folder / name, HASH) for name in (HASHES, KNOWN)]
        samples = EncodedSamples(columns, report, meta["fingerprint"])
        ends = {name: int(columns[name][-1]) for name in ENDS.keys() & names}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise _damage_error(folder) from error
    whole = all(len(columns[ENDS[name]]) == end for name, end in ends.items())
    if not whole or not len(samples) == report.samples == len(hashes) or not bool(len(known)) == bool(len(hashes)):
        raise _damage_error(folder)
    return samples


def _verify(folder: Path) -> None:
    """Read every file of an opened folder. Raises ``DamagedCacheError`` when one is not what was written."""
    try:
        written = _unseal((folder / META).read_bytes())["files"]
        found = {name: list(checksum(folder / name)) for name in written}
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise _damage_error(folder) from error
    if found != written:
        raise _damage_error(folder)


def discard(folder: Path) -> None:
    """Remove a folder that is damaged or outdated still when nobody else looks at it; those who have opened it keep what they have.

    Its lock goes as well, since they hold it. Raises ``OSError``.
    """
    with suppress(FileNotFoundError), folder_held(folder) as is_there:
        if not is_there or _is_usable(folder):
            return
        (folder / META).unlink()  # first: without it the rest counts for nothing
        lock_of(folder).unlink(missing_ok=True)
        shutil.rmtree(folder)


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


def _map_columns(folder: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    return {name: _column(folder / name, dtype_of(name)) for name in names}


def _column(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # nothing to map
            return np.empty(0, dtype)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)
