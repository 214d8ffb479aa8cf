"""The columns in which encoded samples lie, in memory and in files: names, types, what points where, and how values come in and out."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

COLUMNS = {
    "ids": "i",
    "trained": "B",
    "ends": "q",
    "row_ids": "B",
    "row_id_ends": "q",
    "weighted": "q",
    "weights": "d",
    "weight_ends": "q",
}
"""Column → type code of ``array``: tokens of all samples, one after another, and where each sample ends (after a leading 0);
ids of rows as UTF-8, and where each ends; the numbers of the samples that have weights, these, and where each sample's end."""

ITEM_COLUMNS = {"documents": "q", "document_ends": "q"}
"""Further columns where samples have several documents: tokens of each document, and where each sample's end."""

MEDIA_COLUMNS = {"media": "q", "media_ends": "q", "media_items": "B", "media_item_ends": "q"}
"""Further columns in a run with encoders: ``MEDIA_NUMBERS`` numbers of each span, and where each sample's end; its item as bytes,
and where each span's ends."""

MEDIA_NUMBERS = 6
"""Start, tokens, features, and the three numbers of the grid, 0 where there is none."""

OF_DOCUMENT, OF_TOKEN = "document.", "token."
"""Begins of the names of columns of values, which are there where samples have any."""

ENDS = {
    "ends": "ids",
    "row_id_ends": "row_ids",
    "weight_ends": "weights",
    "document_ends": "documents",
    "media_ends": "media",
    "media_item_ends": "media_items",
}
"""Column of offsets → the column that they point into."""

LARGEST_ID = (1 << 31) - 1
"""Largest id of a token: ids are stored in 32 bits."""


def code_of(name: str) -> str:
    """Return the type code of a column."""
    return _CODES.get(name, "f")


def dtype_of(name: str) -> np.dtype[Any]:
    """Return how a column's values lie in memory, and in little-endian files."""
    return np.dtype(np.bool_) if name == "trained" else np.dtype(code_of(name)).newbyteorder("<")


def is_column(name: str) -> bool:
    """Return whether samples may have a column of this name, which is one of a file, too."""
    return name in _CODES or _VALUES.fullmatch(name) is not None


_CODES = COLUMNS | ITEM_COLUMNS | MEDIA_COLUMNS
_VALUES = re.compile(r"(document|token)\.[a-z0-9_]+")


def joined_values(
    name: str, counts: Sequence[Mapping[str, int]], parts: Sequence[Mapping[str, NDArray[Any]]]
) -> Iterator[NDArray[Any]]:
    """Yield the values of a column of samples that lie in parts, one behind another, part by part.

    ``counts`` are the numbers of values of each part's columns. Offsets and numbers of samples go on from the part before; the 0 in
    front of offsets stands once.
    """
    of = ENDS.get(name, "ends" if name == "weighted" else None)
    before = [0] * len(counts) if of is None else [each[of] - (of == "ends") for each in counts]
    for number, shift in enumerate(accumulate([0, *before[:-1]])):
        values = parts[number][name][int(number > 0 and name in ENDS) :]
        yield np.ascontiguousarray(values + np.int64(shift) if shift else values, dtype_of(name))


class RowIds(Sequence[str]):
    """Ids of rows, one for each sample, out of one run of bytes; or those of some samples."""

    def __init__(
        self, content: NDArray[np.uint8], ends: NDArray[np.int64], numbers: NDArray[np.int64] | None = None
    ) -> None:
        self._content, self._ends, self._numbers = content, ends, numbers

    def of(self, numbers: NDArray[np.int64]) -> RowIds:
        """Return the row ids of some samples, read when they are looked at."""
        return RowIds(self._content, self._ends, numbers)

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._numbers is None else len(self._numbers)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        number = number if self._numbers is None else int(self._numbers[number])
        return self._content[self._ends[number] : self._ends[number + 1]].tobytes().decode("utf-8", "surrogateescape")


def pack_flags(trained: Any) -> tuple[bytes, int]:
    """Return a byte for each token, and how many are trained on. Most samples of plain text are trained whole."""
    if isinstance(trained, np.ndarray):
        flags = np.asarray(trained, dtype=np.bool_)
        return flags.tobytes(), int(flags.sum())
    count = trained.count(True)
    return (b"\1" * count if count == len(trained) else _packer("?", len(trained))(*trained)), count


@lru_cache(maxsize=4096)
def _packer(code: str, count: int) -> Callable[..., bytes]:
    """Writes so many numbers (``i``, 32 bits) or truths (``?``, a byte) down."""
    return struct.Struct(f"{count}{code}").pack


def extend_ids(ids: array[Any], more: Any) -> None:
    """Append token ids to their column, the fastest way for each kind of numbers. Raises ``OverflowError`` for one that does not fit."""
    if isinstance(more, np.ndarray):
        if more.itemsize > 4 and np.abs(more).max(initial=0) > LARGEST_ID:  # a cast would wrap it in silence
            raise OverflowError("token ids are stored in 32 bits")
        ids.frombytes(more.astype(np.int32, casting="same_kind").tobytes())
    else:
        try:
            ids.frombytes(_packer("i", len(more))(*more))
        except struct.error:  # one does not fit, or is no number; this leaves the array as it was
            ids.fromlist(list(more))
