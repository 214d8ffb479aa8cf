"""MDS, the shards of MosaicML's streaming: ``index.json``, and files of samples that it names, bare or compressed with zstd.

A shard has the number of samples, where each begins (uint32 each, one more for the end), its config as JSON, then samples: the sizes of
their columns of no fixed size (uint32), and the values (https://docs.mosaicml.com/projects/streaming, ``format/mds``).
"""

from __future__ import annotations

import hashlib
import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field

from mt_core import DataError, Row
from mt_core.files import FileConfig

from .folder_files import named_files
from .load_cache import LoadCache

_PIECE = 1 << 20
_KNOWN_HASHES = ("sha256", "sha1", "md5", "blake2b", "blake2s")


class MdsConfig(FileConfig):
    """Folders of shards."""

    path: str = Field(min_length=1, description="folder with index.json, or that file; folders below are read too")
    ids_in_bytes: Literal["int64", "int32", "uint32", "uint16"] | None = Field(
        None, description="columns of bytes are token ids of this type, as LLM Foundry writes tokens (int64)"
    )


@dataclass(frozen=True, eq=False)
class _Shard:
    """Entry of a shard in its index."""

    index: Path
    first: int
    """Number of samples before it in its index."""
    raw: Mapping[str, Any]
    zipped: Mapping[str, Any] | None
    samples: int
    columns: Sequence[tuple[str, str, int | None]]
    """Name, encoding, and bytes where they are fixed."""

    @property
    def path(self) -> Path:
        return self.index.parent / str((self.zipped or self.raw)["basename"])


class MdsRows:
    """Samples as rows; sample 12 of a folder has the id ``folder/index.json:12``. The last shards that were read stay in memory."""

    def __init__(self, indices: Sequence[Path], ids_in_bytes: str | None = None) -> None:
        self._shards = _shards(indices)
        self._kept = LoadCache(_read_shard)
        self._begins = list(accumulate((shard.samples for shard in self._shards), initial=0))
        self._ids_in_bytes = ids_in_bytes

    def __len__(self) -> int:
        return self._begins[-1]

    def row(self, index: int) -> Row:
        """One sample, as Python's own values. Raises ``DataError`` for a shard that is damaged or an encoding that is not read."""
        number = bisect_right(self._begins, index) - 1
        shard, content = self._shards[number], self._kept.get(self._shards[number])
        inner = index - self._begins[number]
        name = f"{shard.index}:{shard.first + inner + 1}"
        try:
            return {**dict(self._columns(shard, content, inner)), "id": name}
        except (ValueError, struct.error, KeyError, IndexError, RecursionError) as error:
            raise DataError(f"{name}: {shard.path.name} is damaged ({error}). Fetch it again") from error

    def _columns(self, shard: _Shard, content: bytes, number: int) -> list[tuple[str, Any]]:
        begin, end = struct.unpack_from("<2I", content, 4 + 4 * number)
        sizes = []
        for _, _, size in shard.columns:
            if not size:
                (size,) = struct.unpack_from("<I", content, begin)
                begin += 4
            sizes.append(size)
        if begin + sum(sizes) != end or end > len(content):
            raise ValueError("the sizes of a sample's columns are not its size")
        ends = list(accumulate(sizes, initial=begin))
        return [
            (name, _decode(encoding, content[ends[place] : ends[place + 1]], self._ids_in_bytes))
            for place, (name, encoding, _) in enumerate(shard.columns)
        ]


def _decode(encoding: str, data: bytes, ids_in_bytes: str | None) -> Any:
    """Read a value."""
    import numpy as np

    kind, _, rest = encoding.partition(":")
    if kind == "bytes":
        return data if ids_in_bytes is None else np.frombuffer(data, np.dtype(ids_in_bytes).newbyteorder("<")).tolist()
    if kind == "ndarray":
        return _array(data, *rest.split(":"))
    if kind in _SCALARS:
        return np.frombuffer(data, _SCALARS[kind]).tolist()[0]
    return _TEXTS[kind](data.decode())


_TEXTS: dict[str, Callable[[str], Any]] = {"str": str, "json": json.loads, "str_int": int, "str_float": float}
_SCALARS = {
    "int": "<i8",
    **{f"{kind}{8 * size}": f"<{kind[0]}{size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
_READ = {*_TEXTS, *_SCALARS, "bytes", "ndarray"}
_VALUES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32"}
_VALUES |= {64: "uint64", 65: "int64", 66: "float64"}


def _array(data: bytes, dtype: str = "", shape: str = "") -> Any:
    """Values of an array: its type and its shape are said by the encoding, or in front of the values."""
    import numpy as np

    place = 0
    if not dtype:
        dtype, place = _VALUES[data[0]], 1
    sizes: Sequence[int]
    if shape:
        sizes = [int(size) for size in shape.split(",")]
    else:
        axes, width = data[place] >> 2, 1 << data[place] % 4
        place += 1
        sizes = np.frombuffer(data, f"<u{width}", axes, place).tolist()
        place += axes * width
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), -1, place).reshape(sizes).tolist()


def _shards(indices: Sequence[Path]) -> list[_Shard]:
    """The shards of all indices, each once: a merged index names those of folders below it, which have indices, too."""
    read = {path: _read_index(path) for path in indices}
    outermost: dict[Path, Path] = {}
    for path in sorted(indices, key=lambda path: len(path.parts)):
        for shard in read[path]:
            outermost.setdefault(shard.path, path)
    return [shard for path in indices for shard in read[path] if outermost[shard.path] == path]


def _read_index(path: Path) -> list[_Shard]:
    """The shards of an index. Raises ``DataError`` for what is no index, and for what is not read."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        firsts = accumulate((_count(each["samples"]) for each in told["shards"]), initial=0)
        shards = [_shard(path, each, first) for each, first in zip(told["shards"], firsts, strict=False)]
    except OSError as error:
        raise DataError(f"{path.absolute()} cannot be read: {error.strerror}. Check the folder") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path.absolute()} is no index of MDS shards: {error!r}. Fetch it again") from error
    return shards


def _shard(index: Path, told: Mapping[str, Any], first: int) -> _Shard:
    names, encodings, sizes = (told[f"column_{what}"] for what in ("names", "encodings", "sizes"))
    if told["format"] != "mds" or told["version"] != 2:
        raise DataError(f"{index.absolute()} has shards of {told['format']} {told['version']}, and mds 2 is read")
    if unread := [encoding for encoding in encodings if not _is_read(encoding)]:
        raise DataError(
            f"{index.absolute()} has columns of {', '.join(unread)}, which are not read: pickles may run code, and pictures are given as"
            f" files. Columns are read of {', '.join(sorted(_READ))}; write the shards without the others"
        )
    if (compression := told["compression"]) is not None and compression.partition(":")[0] != "zstd":
        raise DataError(
            f"{index.absolute()} has shards compressed with {compression}; zstd and none are read. Write them so"
        )
    raw, zipped = told["raw_data"], told["zip_data"]
    for file in (raw,) if zipped is None else (raw, zipped):
        _count(file["bytes"])
        if not all(isinstance(each, str) for each in (*file["hashes"], *file["hashes"].values())):
            raise ValueError("hashes that are no texts")
        place = PurePosixPath(file["basename"])  # below the folder where indices were merged
        if not place.name or place.is_absolute() or ".." in place.parts or "\0" in file["basename"]:
            raise DataError(f"{index.absolute()} names a file outside its folder: {file['basename']!r}")
    if zipped is not None and (index.parent / raw["basename"]).is_file():  # decompressed before
        zipped = None
    columns = list(zip(names, encodings, (None if size is None else _count(size) for size in sizes), strict=True))
    if len({*names}) != len(names):
        raise ValueError("two columns of one name")
    return _Shard(index, first, raw, zipped, _count(told["samples"]), columns)


def _is_read(encoding: str) -> bool:
    kind, _, rest = encoding.partition(":")
    return kind in _READ and (kind != "ndarray" or rest.partition(":")[0] in ("", *_VALUES.values()))


def _count(value: Any) -> int:
    """The value, if it is a number of samples or bytes in a shard, where places are 32 bits."""
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise ValueError(f"{value!r} is no count")
    return value


def _read_shard(shard: _Shard) -> bytes:
    """The samples of a shard. Raises ``DataError`` where they are not what the index says."""
    try:
        content = shard.path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{shard.path.absolute()} cannot be read: {error.strerror}. Fetch it beside its index.json"
        ) from error
    _check(content, shard.zipped or shard.raw, shard)
    if shard.zipped is not None:
        content = _decompress(content, shard)
        _check(content, shard.raw, shard)
    if len(content) < 4 or struct.unpack_from("<I", content)[0] != shard.samples:
        raise DataError(
            f"{shard.path.absolute()} has not the {shard.samples} samples that index.json says. Fetch both again"
        )
    return content


def _check(content: bytes, told: Mapping[str, Any], shard: _Shard) -> None:
    wrong = [] if len(content) == told["bytes"] else [f"{len(content)} bytes, not {told['bytes']}"]
    for name, wanted in told["hashes"].items():
        if name in _KNOWN_HASHES and hashlib.new(name, content).hexdigest() != wanted:
            wrong.append(f"another {name} than index.json says")
    if wrong:
        raise DataError(
            f"{shard.path.absolute()} is damaged: {told['basename']} has {' and '.join(wrong)}. Fetch it again"
        )


def _decompress(content: bytes, shard: _Shard) -> bytes:
    """The content of a shard, in pieces: a damaged head may say any size, and memory for that would be taken at once."""
    import zstandard

    pieces, left = list[bytes](), int(shard.raw["bytes"])
    try:
        with zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True) as reader:
            while left >= 0 and (piece := reader.read(_PIECE)):
                pieces.append(piece)
                left -= len(piece)
    except (zstandard.ZstdError, MemoryError) as error:
        raise DataError(f"{shard.path.absolute()} is damaged: {error}. Fetch it again") from error
    return b"".join(pieces)


def mds_files(config: MdsConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a split: indices, and the shards that they name."""
    indices = _indices(config, split)
    return None if indices is None else [*indices, *(shard.path for shard in _shards(indices))]


def build_mds(config: MdsConfig, *, split: Literal["train", "eval"]) -> MdsRows | None:
    """The samples of a split."""
    indices = _indices(config, split)
    return None if indices is None else MdsRows(indices, config.ids_in_bytes)


def _indices(config: MdsConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    files = named_files(config, split, ".json", "index.json".__eq__)
    if files is None:
        return None
    if found := [path for path in files if path.name == "index.json"]:
        return found
    named = config.path if split == "train" else config.eval_path
    raise DataError(
        f"dataset.path={named}: there is no index.json, which says what the shards are. Name the folder that has it"
    )
