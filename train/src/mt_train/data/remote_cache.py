"""A token cache behind an address (``s3://bucket/cache/KEY``): read chunk by chunk, and put there with its index last.

The index, columns of places and hashes of samples are fetched when it is opened, a chunk when a value of it is read
(``fetched_files.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import DataError
from mt_core.files import RemoteFile, storage
from mt_core.files.scratch import scratch_folder
from mt_train.data.cache_index import FINGERPRINT, META, CacheIndex, find_differences, unseal
from mt_train.data.chunk_files import DIGEST_BYTES, read_places
from mt_train.data.columns import dtype_of
from mt_train.data.fetched_files import FetchedFiles, WantedFile
from mt_train.data.locks import hold_lock, lock_of
from mt_train.data.media.named_files import find_changed
from mt_train.data.samples import EncodedSamples

INCOMING = "incoming.json"
"""The index under another name, put there before all other files: a copy that was cut short goes on where it says the same."""

_NAMED, _LISTED = 3, 8
"""Other keys of an address that a message compares with, and differences of each that it lists."""
_AT_ONCE = 8


@dataclass(frozen=True)
class RemoteCache:
    """Token caches below an address, of which ``fetched`` has copies here."""

    url: str
    fetched: FetchedFiles

    def samples(self, key: str, made_of: Mapping[str, str]) -> EncodedSamples:
        """The split of this key. Raises ``DataError`` where it is not there, with what others there are made of, or is not whole."""
        url = f"{self.url}/{key}"
        there = files_there(url)
        if META not in there:
            raise DataError(
                f"{self.url} has no token cache {key}, which is that of these rows and options{self._describe_others(made_of)}. Put it"
                f" there with the same keys (mt-data build … --data.cache {self.url}), or let rows be encoded here: --data.cache auto"
            )
        try:
            index = CacheIndex.parse(_content(there[META]))
            samples = _RemoteFolder(url, there, index, self.fetched).samples()
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(
                f"{url}/{META} is damaged, or of another version ({error}). Remove it there, and put it there again"
                f" (mt-data build … --data.cache {self.url})"
            ) from error
        if changed := find_changed(samples.report.named_files):
            raise DataError(
                f"{changed} is another than it was when {url} was made. Put it back, or encode rows here: --data.cache FOLDER"
            )
        return samples

    def _describe_others(self, made_of: Mapping[str, str]) -> str:
        """Say in what some other keys differ; nothing where there are none."""
        there, described = files_there(self.url), []
        names = [name for name in sorted(there) if name.count("/") == 1 and name.endswith(f"/{META}")]
        for name in names[:_NAMED]:
            with suppress(ValueError, KeyError, TypeError):
                theirs = unseal(_content(there[name]))["made_of"]
                other = find_differences(theirs, made_of)[:_LISTED]
                described.append(f"{name.partition('/')[0]} is of another {', '.join(other)}")
        return f"; of {len(names)} that are there {'; '.join(described)}" if described else ""


@dataclass(frozen=True)
class _RemoteFolder:
    """The folder of one key behind an address, whose index was read."""

    url: str
    there: Mapping[str, RemoteFile]
    index: CacheIndex
    fetched: FetchedFiles

    def samples(self) -> EncodedSamples:
        """The samples. Raises ``DataError`` and ``ValueError``."""
        files, chunks = self.index.files.values(), self.index.chunks.values()
        whole, largest = sum(each.size for each in files), max((each.size for each in chunks), default=0)
        self.fetched.require(whole, largest, self.url)
        self._tell(whole + sum(each.size for each in chunks))
        self.fetched.prepare([self.wanted(name) for name in self.index.files])
        fingerprint = unseal(_content(self.there[FINGERPRINT])) if FINGERPRINT in self.there else None
        if fingerprint is None:
            self.fetched.say(
                f"notice: {self.url} has no {FINGERPRINT}, for which each process fetches and reads all chunks once; put it there with"
                " mt-data build"
            )
        return self.index.samples(self.numbers, self.parts, fingerprint)

    def _tell(self, size: int) -> None:
        limit = self.fetched.limit
        self.fetched.say(f"notice: tokens are fetched from {self.url} ({size:,} bytes) into {self.fetched.root}")
        if size > limit:
            self.fetched.say(
                f"warning: they are more than the {limit:,} bytes that are kept there, so that rows in shuffled order fetch chunks again"
                " and again; raise MT_CHUNK_CACHE_GIB, or read rows in their order (--data.shuffle false)"
            )

    def wanted(self, name: str) -> WantedFile:
        """Return the file to fetch. Raises ``DataError`` where it is not there, or not whole."""
        is_chunk = name in self.index.chunks
        entry = self.index.chunks[name] if is_chunk else self.index.files[name]
        remote, url = self.there.get(name), f"{self.url}/{name}"
        if remote is None or remote.size != entry.size:
            has = "is not there" if remote is None else f"has {remote.size:,} bytes, not {entry.size:,}"
            raise DataError(
                f"{url} {has}, which its index names. Put it there again (mt-data build with the same --data.cache)"
            )
        return WantedFile(remote, url, entry.size, entry.digest, DIGEST_BYTES if is_chunk else 0)

    def numbers(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Map a file of numbers; its lock is shared as long as it is mapped, since a map keeps its file open."""
        with self.fetched.handle_of(self.wanted(name)) as handle:
            if not os.fstat(handle).st_size:
                return np.empty(0, dtype)
            with os.fdopen(os.dup(handle), "rb") as file:
                return np.memmap(file, dtype, "r")

    def parts(self, name: str) -> dict[str, RemotePart]:
        """The columns of a chunk."""
        chunk = _Chunk(self.wanted(name), self.fetched)
        counts = self.index.chunks[name].counts or {}
        return {column: RemotePart(chunk, column, count) for column, count in counts.items()}


@dataclass
class _Chunk:
    wanted: WantedFile
    fetched: FetchedFiles

    @contextmanager
    def open(self) -> Iterator[Any]:
        with self.fetched.handle_of(self.wanted) as handle, os.fdopen(os.dup(handle), "rb", buffering=0) as file:
            yield file

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Offset of each column's values, in bytes."""
        with self.open() as file:
            return read_places(file)


@dataclass(frozen=True)
class RemotePart:
    """Values of a column in a chunk behind an address, copied out of the chunk's file when they are asked for."""

    chunk: _Chunk
    name: str
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, wanted: slice | NDArray[Any]) -> NDArray[Any]:
        if not isinstance(wanted, slice):
            whole: NDArray[Any] = self[:]
            return whole[wanted]  # type: ignore[no-any-return]
        start, stop, step = wanted.indices(self.count)
        assert step > 0, "columns are read forwards"
        values = np.empty(max(stop - start, 0), dtype_of(self.name))
        if len(values):
            with self.chunk.open() as file:
                file.seek(self.chunk.places[self.name] + start * values.itemsize)
                _fill(file, values.view(np.uint8).data, self.chunk.wanted)
        return values[::step]

    def fetch_with(self, others: Sequence[RemotePart]) -> None:
        """Fetch the chunks of several parts at once."""
        self.chunk.fetched.prepare([each.chunk.wanted for each in others])


def _fill(file: Any, content: memoryview, wanted: WantedFile) -> None:
    while content:
        got = file.readinto(content)
        if not got:
            raise DataError(f"the copy of {wanted.url} ends early: it was changed while it was read. Start again")
        content = content[got:]


def files_there(url: str) -> Mapping[str, RemoteFile]:
    """Path below an address → file; none where there is nothing. Raises ``DataError`` where the storage does not say."""
    try:
        return storage().files_below(url)
    except DataError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return {}
        raise


def _content(file: RemoteFile) -> bytes:
    with scratch_folder() as folder:
        storage().fetch(file, folder / "file")
        return (folder / "file").read_bytes()


def put_cache(folder: Path, url: str, say: Callable[[str], None]) -> int:
    """Copy a complete folder to an address, the index last; how many files. What was copied before is left, also a whole cache of
    this key that was made elsewhere, whose chunks name rows otherwise. Raises ``DataError``, and keeps what was copied.
    """
    write = getattr(storage(), "put", None)
    if write is None:
        raise DataError("what serves addresses here writes none: pip install -U mt-plugin-datasets")
    with hold_lock(lock_of(folder), say, shared=True):
        index, there = CacheIndex.parse((folder / META).read_bytes()), files_there(url)
        if META in there and not _is_same(there[META], folder / META) and _is_whole(there):
            say(f"{url} is there already, made elsewhere")
            return 0
        same = INCOMING in there and _is_same(there[INCOMING], folder / META)
        if not same:
            write(folder / META, f"{url}/{INCOMING}")  # whose files they are that come now
        sizes = {name: file.size for name, file in there.items()} if same else {}
        names = [name for name in (*index.files, *index.chunks, FINGERPRINT) if (folder / name).exists()]
        missing = [name for name in names if sizes.get(name) != (folder / name).stat().st_size]
        if missing:
            say(f"copying {len(missing):,} of {len(names):,} files to {url}")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda name: write(folder / name, f"{url}/{name}"), missing))
        if missing or META not in there or not _is_same(there[META], folder / META):
            write(folder / META, f"{url}/{META}")
    return len(missing)


def _is_same(file: RemoteFile, path: Path) -> bool:
    return file.size == path.stat().st_size and _content(file) == path.read_bytes()


def _is_whole(there: Mapping[str, RemoteFile]) -> bool:
    """Return whether all files are there, in the sizes that the index there says."""
    try:
        index = CacheIndex.parse(_content(there[META]))
    except (ValueError, KeyError, TypeError):
        return False
    return all(
        name in there and there[name].size == each.size for name, each in {**index.files, **index.chunks}.items()
    )
