"""Columns whose values lie in several files: read where they are, as one column, without being written again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mt_train.data.columns import ENDS, dtype_of


class ChunkedColumn:
    """Values of a column in the order of its chunks. Numbers, runs and arrays of places are read as of an array.

    A run inside a chunk, as those of samples are, is a view of its file; one over several chunks is a copy.
    """

    def __init__(
        self, parts: Sequence[NDArray[Any]], dtype: np.dtype[Any], shifts: Sequence[int] | None, *, is_ends: bool
    ) -> None:
        """``parts`` are the values of each chunk, ``shifts`` what is added to them. Offsets (``is_ends``) begin with a 0 in each chunk,
        which is the last offset of the chunk before: it counts once."""
        assert parts, "a column without a chunk is an empty array"
        self._parts, self.dtype, self._shifts, self._more = parts, dtype, shifts, int(is_ends)
        self._starts = np.cumsum([0, *(len(part) - self._more for part in parts)])
        self._bounds: list[int] = self._starts.tolist()  # numbers of Python's are found ten times as fast

    def __len__(self) -> int:
        return self._bounds[-1] + self._more

    def chunks(self) -> Iterator[NDArray[Any]]:
        """Yield the values chunk by chunk, each once."""
        for number in range(len(self._starts) - 1):
            values = self._values(number)
            yield values[self._more :] if number else values

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice | NDArray[Any]) -> NDArray[Any]: ...
    def __getitem__(self, place: int | slice | NDArray[Any]) -> Any:
        if isinstance(place, slice):
            return self._run(*place.indices(len(self)))
        if isinstance(place, np.ndarray):
            return self._several(place)
        place = range(len(self))[place]
        number = self._chunk_of(place)
        return self._values(number, slice(place - self._bounds[number], place - self._bounds[number] + 1))[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all values as one array, which has to fit into memory."""
        whole = np.concatenate(list(self.chunks()))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def tolist(self) -> list[Any]:
        """Return all values as numbers."""
        return np.asarray(self).tolist()  # type: ignore[no-any-return]

    def _run(self, start: int, stop: int, step: int) -> NDArray[Any]:
        first = self._chunk_of(start)
        begin = self._bounds[first]
        if step > 0 and stop <= self._bounds[first + 1] + self._more:
            return self._values(first, slice(start - begin, max(stop, start) - begin, step))
        if step != 1:
            return np.asarray(self)[start : stop if stop >= 0 else None : step]
        last = self._chunk_of(stop - 1)
        pieces = [self._values(first, slice(start - begin, None))]
        for number in range(first + 1, last + 1):  # offset 0 of a chunk was the last one of the chunk before
            pieces.append(self._values(number, slice(self._more, stop - self._bounds[number])))
        return np.concatenate(pieces)

    def _several(self, places: NDArray[Any]) -> NDArray[Any]:
        places = np.where(places < 0, places + len(self), places)
        found = np.empty(len(places), self.dtype)
        owners = np.minimum(np.searchsorted(self._starts, places, side="right"), len(self._starts) - 1) - 1
        order = np.argsort(owners, kind="stable")
        bounds = np.flatnonzero(np.diff(owners[order])) + 1
        for own in np.split(order, bounds) if len(order) else ():
            number = int(owners[own[0]])
            found[own] = self._values(number, places[own] - self._starts[number])
        return found

    def _chunk_of(self, place: int) -> int:
        return min(max(bisect_right(self._bounds, place) - 1, 0), len(self._bounds) - 2)

    def _values(self, number: int, wanted: slice | NDArray[Any] | None = None) -> NDArray[Any]:
        values = self._parts[number]
        values = values if wanted is None else values[wanted]
        return values if self._shifts is None or not self._shifts[number] else values + self._shifts[number]


def pieces_of(column: NDArray[Any] | ChunkedColumn) -> Iterator[NDArray[Any]]:
    """Yield the values of a column run by run, so that a large one need not be in memory at once."""
    if isinstance(column, ChunkedColumn):
        yield from column.chunks()
    else:
        yield column


def join_columns(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, ChunkedColumn]:
    """Return the columns of samples that lie in parts, one behind another, all of them with columns of the same names."""
    counts = {name: [len(part[name]) for part in parts] for name in parts[0]}
    return {
        name: ChunkedColumn([part[name] for part in parts], dtype_of(name), _shifts(name, counts), is_ends=name in ENDS)
        for name in parts[0]
    }


def _shifts(name: str, counts_of: Mapping[str, Sequence[int]]) -> Sequence[int] | None:
    """Return what is added to the values of each part: offsets and numbers of samples go on from those before."""
    if name in ENDS:
        return [0, *np.cumsum(counts_of[ENDS[name]])[:-1].tolist()]
    if name == "weighted":
        return [0, *np.cumsum(np.array(counts_of["ends"]) - 1)[:-1].tolist()]
    return None
