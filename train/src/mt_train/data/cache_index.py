"""The index of a token cache (``meta.json``): size and SHA-256 of every other file, and the report; and the columns beside it.

Columns that say where samples, their documents and media begin and end (``PLACES``) stand in files of their own, whole, so that
the order and the packing of an epoch ask for no chunk.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt_core.files.writing import replace_file
from mt_train.data.chunk_files import HASH
from mt_train.data.chunked_columns import ChunkedColumn, Part
from mt_train.data.chunks import is_chunk
from mt_train.data.columns import ENDS, dtype_of, is_column, joined_values
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples

META, PLAN = "meta.json", "plan.json"
"""The index; and while chunks are made how many there are, and hashes of what the key is made of, by name."""
HASHES, KNOWN, FINGERPRINT = "hashes", "known", "fingerprint"
"""64 bits of each sample (``measures.sample_hashes``), and the same in order: with them equal rows are found without reading tokens."""

PLACES = frozenset({*ENDS, "weighted", "documents", "media"})
"""Columns of a few numbers a sample, which are read all over."""

Numbers = Callable[[str, np.dtype[Any]], NDArray[Any]]
"""Opens a file of numbers by its name and their type."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """A file of a cache: its size in bytes and a SHA-256; of a chunk, the one that stands in front of it, and values of each column."""

    size: int
    digest: str
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True)
class CacheIndex:
    """All files of a cache by name, and what became of the rows; ``made_of`` has hashes of what the key is a hash of, by name."""

    report: RowStatistics
    chunks: Mapping[str, FileEntry]
    files: Mapping[str, FileEntry]
    made_of: Mapping[str, str]

    def write(self, path: Path) -> None:
        """Write it down. Raises ``OSError``."""
        told = {
            "report": self.report.as_dict(),
            "chunks": {name: [each.size, each.digest, each.counts] for name, each in self.chunks.items()},
            "files": {name: [each.size, each.digest] for name, each in self.files.items()},
            "made_of": dict(self.made_of),
        }
        write_durably(path, seal(json.dumps(told)))

    @classmethod
    def parse(cls, content: bytes) -> CacheIndex:
        """Read what was written. Raises ``ValueError``, ``KeyError`` and ``TypeError`` for anything else; all names are of files of
        a cache."""
        told = unseal(content)
        chunks = {name: FileEntry(*entry) for name, entry in sorted(told["chunks"].items())}
        files = {name: FileEntry(*entry) for name, entry in told["files"].items()}
        strange = [name for name in chunks if not is_chunk(name)]
        strange += [name for name in files if name not in {HASHES, KNOWN, *PLACES}]
        for name, each in {**chunks, **files}.items():
            if not isinstance(each.size, int) or each.size < 0 or not _DIGEST.fullmatch(each.digest):
                strange.append(name)
        if strange:
            raise ValueError(f"{strange} are no files of a token cache")
        return cls(RowStatistics.from_dict(told["report"]), chunks, files, told["made_of"])

    @property
    def filled(self) -> dict[str, Mapping[str, int]]:
        """Values of each column of the chunks that have samples, in their order. Raises ``ValueError`` where columns differ."""
        found = {name: each.counts for name, each in self.chunks.items() if each.counts and each.counts["ends"] > 1}
        names = next(iter(found.values()), {}).keys()
        if any(counts.keys() != names for counts in found.values()) or not all(map(is_column, names)):
            raise ValueError(f"chunks have columns of other names than {sorted(names)}")
        return found

    def columns(self, numbers_of: Numbers, parts_of: Callable[[str], Mapping[str, Part]]) -> dict[str, Any]:
        """All columns: those of files by ``numbers_of``, those of the chunk of a name by ``parts_of``. Raises ``ValueError`` where their
        lengths are not such as the index says."""
        filled = self.filled
        columns: dict[str, Any] = {} if filled else EncodedSamples().columns
        parts = [parts_of(name) for name in filled]
        for name in next(iter(filled.values()), ()):
            counts = [each[name] for each in filled.values()]
            if name in PLACES:
                columns[name] = numbers_of(name, dtype_of(name))
            elif [len(each[name]) for each in parts] == counts:
                columns[name] = ChunkedColumn([each[name] for each in parts], dtype_of(name))
            else:
                raise ValueError(f"chunks have other values of {name} than the index says")
            if len(columns[name]) != sum(counts) - (len(counts) - 1) * (name in ENDS):
                raise ValueError(f"{name} has {len(columns[name])} values")
        return columns

    def samples(
        self,
        numbers_of: Numbers,
        parts_of: Callable[[str], Mapping[str, Part]],
        fingerprint: Mapping[str, Any] | None,
    ) -> EncodedSamples:
        """The samples, with their report. Raises ``ValueError`` as ``columns`` does."""
        self.report.hashes, self.report.known = (numbers_of(name, HASH) for name in (HASHES, KNOWN))
        samples = EncodedSamples(self.columns(numbers_of, parts_of), self.report, fingerprint)
        hashes, known = len(self.report.hashes), len(self.report.known)
        if not len(samples) == self.report.samples == hashes or bool(hashes) != bool(known):
            raise ValueError(f"{len(samples)} samples, {self.report.samples} counted, {hashes} hashes")
        return samples


def find_differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """Return the names of what two keys are made of and do not share (``CacheIndex.made_of``)."""
    return [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]


def write_places(
    folder: Path, counts: Sequence[Mapping[str, int]], chunks: Sequence[Mapping[str, NDArray[Any]]]
) -> list[str]:
    """Write ``PLACES`` of some chunks with samples, one file a column; their names. Raises ``OSError``."""
    names = [name for name in next(iter(counts), ()) if name in PLACES]
    for name in names:
        with replace_file(folder / name, durable=True, by_many=True) as file:
            for values in joined_values(name, counts, chunks):
                file.write(values.tobytes())
    return names


def read_numbers(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map a file of numbers. Raises ``OSError``."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


def entry_of(path: Path) -> FileEntry:
    """Return size and SHA-256 of a file, all of which is read. Raises ``OSError``."""
    with path.open("rb") as file:
        return FileEntry(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def seal(text: str) -> bytes:
    """A line of JSON, and a line with its CRC-32."""
    line = text.encode() + b"\n"
    return line + b"%08x\n" % zlib.crc32(line)


def unseal(content: bytes) -> dict[str, Any]:
    """Return what was sealed. Raises ``ValueError`` when it is something else."""
    line, newline, seal = content.partition(b"\n")
    if seal != b"%08x\n" % zlib.crc32(line + newline):
        raise ValueError("the last line is not the checksum of the first")
    told: dict[str, Any] = json.loads(line)
    return told


def write_durably(path: Path, content: bytes) -> None:
    """Write a file that is whole or not there, also after a loss of power. Raises ``OSError``."""
    with replace_file(path, durable=True, by_many=True) as file:
        file.write(content)
