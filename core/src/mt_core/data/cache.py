"""The token cache: encoded rows in files, in a folder whose name is a hash of everything that they follow from.

``KEY/meta.json``, ``hashes``, ``known`` and a file for each column (``data/encoded.py``), mapped into memory. While it is made,
``KEY.building`` holds chunks, and ``KEY.lock`` is held by the one process that makes it (``locks.py``); others wait for it.
A kill loses a chunk.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mt_core.data.chunks import Progress, Work, encode_chunks, read_chunk
from mt_core.data.encoded import COLUMNS, ENDS, EncodedSamples, dtype_of
from mt_core.data.encoding import Rules, refuse_bad_rows
from mt_core.data.locks import held, share
from mt_core.data.measures import count_duplicates
from mt_core.data.report import DataReport
from mt_core.errors import DataError
from mt_core.protocols import Dataset, Objective

META = "meta.json"
HASHES, KNOWN, HASH = "hashes", "known", np.dtype("<u8")
"""64 bits of each sample (``measures.sample_hashes``), and the same in order: with them equal rows are found without reading tokens."""


class UnusableCacheError(DataError):
    """A folder that cannot be written, or knows no locks."""


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
            while (samples := use(folder)) is None:
                self.root.mkdir(parents=True, exist_ok=True)
                with held(lock_of(folder), self.say):
                    if not is_complete(folder):
                        self._make(folder, source, objective, rules, check)
        except OSError as error:
            raise UnusableCacheError(
                f"the token cache {self.root} cannot be written: {error.strerror or error}. Choose another folder with"
                " --data.cache FOLDER (or MT_CACHE), or keep tokens in memory: --data.cache none"
            ) from error
        refuse_bad_rows(samples.report, rules)  # whoever made it may have skipped them
        return samples

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


def lock_of(folder: Path) -> Path:
    """The file whose lock its makers and readers have."""
    return folder.with_name(f"{folder.name}.lock")


def building_of(folder: Path) -> Path:
    """Where its chunks are while it is made."""
    return folder.with_name(f"{folder.name}.building")


def is_complete(folder: Path) -> bool:
    """Whether there is something to open."""
    return (folder / META).is_file()


def merge(chunks: Sequence[Path], folder: Path, rules: Rules) -> None:
    """Write the chunks as one set of columns. The meta file comes last: with it the folder is complete.

    Raises ``DataError`` when all of them together have too many bad rows.
    """
    totals, reports = dict.fromkeys(COLUMNS, 0), []
    files: dict[str, BinaryIO] = {name: (folder / name).open("wb") for name in COLUMNS}
    try:
        for name in ENDS:
            files[name].write(np.zeros(1, dtype_of(name)).tobytes())
        for path in chunks:
            chunk = read_chunk(path)
            if chunk is None:
                raise DataError(f"{path} was damaged while the token cache was made; start again")
            _append(chunk, files, totals)
            reports.append(chunk.report)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()
    report = DataReport.total(reports)
    refuse_bad_rows(report, rules)
    report.hashes = np.empty(0, HASH) if report.hashes is None else report.hashes  # of no chunk at all
    samples = EncodedSamples(_mapped(folder), report)
    count_duplicates(samples)
    for name, values in ((HASHES, report.hashes), (KNOWN, report.known)):
        _write(folder / name, np.asarray(values, HASH).tobytes())
    _write(folder / META, json.dumps({"report": report.as_dict(), "fingerprint": samples.fingerprint()}).encode())


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _append(chunk: EncodedSamples, files: Mapping[str, BinaryIO], totals: dict[str, int]) -> None:
    """Write a chunk's columns after those before it; offsets and numbers go on from theirs."""
    columns = chunk.columns
    shifts = {name: totals[target] for name, target in ENDS.items()} | {"weighted": totals["ends"]}
    for name, values in columns.items():
        values = values[1:] if name in ENDS else values
        shifted = values + shifts[name] if name in shifts else values
        files[name].write(np.ascontiguousarray(shifted, dtype=dtype_of(name)).data)
        totals[name] += len(values)


def use(folder: Path) -> EncodedSamples | None:
    """The samples of a folder, which `mt-data clean` leaves alone as long as they live; ``None`` when it is not complete.

    That it is used is remembered by the time of its meta file. Raises ``DataError`` when it is damaged.
    """
    if not is_complete(folder):
        return None
    lock = share(lock_of(folder))
    try:
        if not is_complete(folder):  # removed before it was locked
            return None
        samples = open_samples(folder)
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
    """The samples of a complete folder, mapped: nothing is read before it is used. Raises ``DataError`` when it is damaged."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        columns = _mapped(folder)
        report = DataReport.from_dict(meta["report"])
        report.hashes, report.known = hashes, known = [_column(folder / name, HASH) for name in (HASHES, KNOWN)]
        samples = EncodedSamples(columns, report, meta["fingerprint"])
        ends = {name: int(columns[name][-1]) for name in ENDS}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise _damaged(folder) from error
    whole = all(len(columns[target]) == ends[name] for name, target in ENDS.items())
    if not whole or not len(samples) == report.samples == len(hashes) or not bool(len(known)) == bool(len(hashes)):
        raise _damaged(folder)
    return samples


def _damaged(folder: Path) -> DataError:
    return DataError(f"{folder}, of the token cache, is damaged; remove it, and the rows are encoded anew")


def _mapped(folder: Path) -> dict[str, NDArray[Any]]:
    return {name: _column(folder / name, dtype_of(name)) for name in COLUMNS}


def _column(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # nothing to map
            return np.empty(0, dtype)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)
