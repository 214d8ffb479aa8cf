"""Files of chunks: the SHA-256 of all that follows, then the columns and the report as safetensors (https://github.com/huggingface/safetensors).

A chunk is written once, while a cache is made, and read where it lies: columns begin at multiples of 8 bytes and are mapped.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from mt_core.files.writing import replace_file
from mt_train.data.columns import dtype_of, is_column
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples

HASH = np.dtype("<u8")
"""64 bits of each sample (``measures.sample_hashes``)."""

_HASHES, _REPORT = "hashes", "report"
DIGEST_BYTES = hashlib.sha256().digest_size
"""Bytes of the SHA-256 in front."""

_HEAD = DIGEST_BYTES + 8
"""Bytes before the header: the digest, and the header's length."""


@dataclass(frozen=True)
class ChunkHead:
    """Head of a chunk, which comes before its values: bytes of the file, its SHA-256, values of each column, and its report with hashes."""

    size: int
    digest: str
    counts: Mapping[str, int]
    report: RowStatistics

    @property
    def samples(self) -> int:
        """Count the samples of the chunk."""
        return self.counts["ends"] - 1


def write_chunk(path: Path, samples: EncodedSamples) -> None:
    """The samples as a file that is whole or not there."""
    assert samples.report.hashes is not None, "encode() made them"
    arrays = {name: np.ascontiguousarray(values, dtype_of(name)) for name, values in samples.columns.items()}
    arrays[_HASHES] = np.ascontiguousarray(samples.report.hashes, HASH)
    content = save(arrays, metadata={_REPORT: json.dumps(samples.report.as_dict())})
    with replace_file(path, durable=True, by_many=True) as file:
        file.write(hashlib.sha256(content).digest())
        file.write(content)


def read_chunk(path: Path) -> EncodedSamples | None:
    """Read what ``write_chunk`` wrote; nothing where there is no such file, or its hash says that it is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.sha256(memoryview(content)[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
        return None
    arrays, report = _parse(content)
    report.hashes = arrays.pop(_HASHES)
    return EncodedSamples(arrays, report)


def read_head(path: Path) -> ChunkHead:
    """Read the head of a chunk and its hashes, and no token. Raises ``OSError`` and ``ValueError``."""
    with path.open("rb") as file:
        size, start = os.fstat(file.fileno()).st_size, file.read(_HEAD)
        length = int.from_bytes(start[DIGEST_BYTES:], "little")
        if len(start) < _HEAD or length > size:
            raise ValueError(f"{path} is no chunk")
        header = json.loads(file.read(length))
        begin, end = header[_HASHES]["data_offsets"]
        file.seek(_HEAD + length + begin)
        hashes = np.frombuffer(file.read(end - begin), HASH)
    report = RowStatistics.from_dict(json.loads(header.pop("__metadata__")[_REPORT]))
    report.hashes = hashes
    if size != _HEAD + length + max(each["data_offsets"][1] for each in header.values()):
        raise ValueError(f"{path} is cut short")
    counts = {name: each["shape"][0] for name, each in header.items() if is_column(name)}
    return ChunkHead(size, start[:DIGEST_BYTES].hex(), counts, report)


def read_places(file: BinaryIO) -> dict[str, int]:
    """Return where the values of each column of a chunk begin in its file, in bytes."""
    file.seek(DIGEST_BYTES)
    length = int.from_bytes(file.read(_HEAD - DIGEST_BYTES), "little")
    header = json.loads(file.read(length))
    return {name: _HEAD + length + each["data_offsets"][0] for name, each in header.items() if is_column(name)}


def is_intact(path: Path, size: int, digest: str) -> bool:
    """Return whether a chunk is the one that was written. Reads all of it. Raises ``OSError``."""
    with path.open("rb") as file:
        return has_digest(file, size, digest, skips=DIGEST_BYTES)


def has_digest(file: BufferedReader | FileIO, size: int, digest: str, *, skips: int) -> bool:
    """Return whether a file, opened at its begin, has a size and a SHA-256. Reads all of it. Raises ``OSError``.

    Where ``skips`` bytes stand in front, they are that SHA-256, and it is of what follows.
    """
    return (
        os.fstat(file.fileno()).st_size == size
        and (not skips or file.read(skips).hex() == digest)
        and hashlib.file_digest(file, "sha256").hexdigest() == digest
    )


def map_chunk(path: Path) -> dict[str, NDArray[Any]]:
    """Map the columns of a chunk. Raises ``OSError``, and ``ValueError`` for what is none."""
    return {name: values for name, values in _parse(_map(path))[0].items() if name != _HASHES}


def _parse(content: bytes | memoryview) -> tuple[dict[str, NDArray[Any]], RowStatistics]:
    view = memoryview(content)
    length = int.from_bytes(view[DIGEST_BYTES:_HEAD], "little")
    header = json.loads(bytes(view[_HEAD : _HEAD + length]))
    report = RowStatistics.from_dict(json.loads(header.pop("__metadata__")[_REPORT]))
    arrays = {}
    for name, each in header.items():
        dtype = HASH if name == _HASHES else dtype_of(name)
        begin, _ = each["data_offsets"]
        arrays[name] = np.frombuffer(view, dtype, each["shape"][0], _HEAD + length + begin)
    return arrays, report


def _map(path: Path) -> memoryview:
    """Map a file without keeping it open, as ``mmap.mmap`` does: a cache may have more chunks than a process may open files."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEAD:
            raise ValueError(f"{path} is no chunk")
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        numbers = (ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
        address = library.mmap(None, *numbers)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    mapped = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(mapped, library.munmap, ctypes.c_void_p(address), ctypes.c_size_t(size)).atexit = False
    return memoryview(mapped).cast("B").toreadonly()
