"""Megatron's indexed datasets: token ids in ``NAME.bin``, and where sequences and documents begin in ``NAME.idx``.

The index is ``MMIDIDX\\0\\0``, version 1 (8 bytes), the code of the ids' type (1), counts of sequences and of document borders (8 each);
then the length of each sequence (int32), its first byte in the other file (int64), and the borders of documents, as numbers of
sequences (int64, the first is 0). Those with pictures have a mode for each sequence (int8) behind
(https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/indexed_dataset.py).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from mt_core import DataError, Row
from mt_core.files import FileConfig, suffix_of

from .folder_files import named_files
from .load_cache import LoadCache

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_BLOCK = 1 << 20
_TYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Code → type of ids; 6 and 7 are fractions, which no ids are."""


class MegatronConfig(FileConfig):
    """Files that Megatron-LM or NeMo made of documents."""

    path: str = Field(min_length=1, description=".idx file, beside its .bin; a folder (all *.idx below it); a pattern")


class IndexedRows:
    """Documents as rows ``{"id", "input_ids"}``; document 12 of a file has the id ``file:12``. Files are mapped."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files, self._kept = files, LoadCache(_open, max(1, len(files)))  # maps: checked once, and no memory
        self._begins = list(accumulate((len(self._kept.get(path).borders) - 1 for path in files), initial=0))

    def __len__(self) -> int:
        return self._begins[-1]

    def row(self, index: int) -> Row:
        """The ids of one document."""
        import numpy as np

        number = bisect_right(self._begins, index) - 1
        path, inner = self._files[number], index - self._begins[number]
        opened = self._kept.get(path)
        first, last = (int(border) for border in opened.borders[inner : inner + 2])
        starts, counts = (values[first:last].tolist() for values in (opened.starts, opened.counts))
        pieces = [
            np.frombuffer(opened.content, opened.dtype, count, start)
            for start, count in zip(starts, counts, strict=True)
        ]
        return {"id": f"{path}:{inner + 1}", "input_ids": [each for piece in pieces for each in piece.tolist()]}


class _Opened(NamedTuple):
    content: Any
    dtype: Any
    counts: Any
    starts: Any
    borders: Any


def _open(path: Path) -> _Opened:
    """Map the two files. Raises ``DataError`` where they are not of this format, or do not belong together."""
    import numpy as np

    try:
        index = np.memmap(path, np.uint8, "r")
        magic, version, code, sequences, borders = _HEAD.unpack(index[: _HEAD.size].tobytes())
    except (OSError, ValueError, struct.error) as error:
        raise DataError(
            f"{path.absolute()} cannot be read as an index of Megatron's: {error}. Copy it again"
        ) from error
    if magic != _MAGIC or version != 1 or code not in _TYPES:
        raise DataError(
            f"{path.absolute()} is no index of Megatron's ids: it begins with {magic!r}, version {version}, type {code}; {_MAGIC!r},"
            f" version 1 and a type of {', '.join(map(str, _TYPES))} is read. Write it with Megatron's tools/preprocess_data.py"
        )
    size = _HEAD.size + 12 * sequences + 8 * borders
    if len(index) == size + sequences and sequences:
        raise DataError(
            f"{path.absolute()} has a mode for each sequence: some are pictures, whose bytes are no ids. Give a dataset of texts"
        )
    if len(index) != size:
        raise DataError(
            f"{path.absolute()} has {len(index)} bytes, and {sequences} sequences with {borders} borders of documents need {size}. Copy"
            " it again"
        )
    counts = np.frombuffer(index, "<i4", sequences, _HEAD.size)
    starts = np.frombuffer(index, "<i8", sequences, _HEAD.size + 4 * sequences)
    ends = np.frombuffer(index, "<i8", borders, _HEAD.size + 12 * sequences)
    if not borders or ends[0] != 0 or ends[-1] != sequences or bool((ends[1:] < ends[:-1]).any()):
        raise DataError(
            f"{path.absolute()}: its borders of documents do not rise from 0 to {sequences}, the number of sequences. Write it again"
        )
    dtype = np.dtype(_TYPES[code])
    _check_places(path, counts, starts, dtype.itemsize)
    return _Opened(
        _ids_beside(path, int(counts.sum(dtype=np.int64)), dtype),
        dtype,
        counts,
        starts,
        ends,
    )


def _check_places(path: Path, counts: Any, starts: Any, width: int) -> None:
    """Raise ``DataError`` unless the sequences lie one behind another, in any order: else some would be read from the ids of others."""
    import numpy as np

    if not _follow(counts, starts, width):
        order = np.lexsort((counts, starts))
        if not _follow(counts[order], starts[order], width):
            raise DataError(
                f"{path.absolute()}: its sequences do not lie one behind another in {path.with_suffix('.bin').name}, from byte 0 on: it is"
                " damaged. Copy it again"
            )


def _follow(counts: Any, starts: Any, width: int) -> bool:
    """Return whether each sequence begins where the one before it ends; in blocks, so that no copy of an index is in memory."""
    import numpy as np

    end = 0
    for begin in range(0, len(counts), _BLOCK):
        sizes = counts[begin : begin + _BLOCK].astype(np.int64) * width
        ends = end + np.cumsum(sizes)
        if bool((sizes < 0).any()) or not np.array_equal(starts[begin : begin + _BLOCK], ends - sizes):
            return False
        end = int(ends[-1])
    return True


def _ids_beside(path: Path, tokens: int, dtype: Any) -> Any:
    import numpy as np

    file = path.with_suffix(".bin")
    try:
        content = np.memmap(file, np.uint8, "r") if file.stat().st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise DataError(
            f"{file.absolute()}, of {path.name}, cannot be read: {error.strerror}. Put it beside the index"
        ) from error
    if len(content) != tokens * dtype.itemsize:
        raise DataError(
            f"{file.absolute()} has {len(content)} bytes, and {path.name} has {tokens} ids of {dtype.itemsize} bytes. Copy both again"
        )
    return content


def megatron_files(config: MegatronConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a split: indices, and the ids beside them."""
    files = _indices(config, split)
    return None if files is None else [each for path in files for each in (path, path.with_suffix(".bin"))]


def build_megatron(config: MegatronConfig, *, split: Literal["train", "eval"]) -> IndexedRows | None:
    """The documents of a split."""
    files = _indices(config, split)
    return None if files is None else IndexedRows(files)


def _indices(config: MegatronConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    return named_files(config, split, ".idx", lambda name: suffix_of(Path(name)) == ".idx")
