"""The columns in which encoded samples lie, in memory and in files: names, types, and what points where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

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
