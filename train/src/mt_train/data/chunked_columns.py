"""Columns whose values lie in several files: read where they are, as one column, without being written again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray


class Part(Protocol):
    """Values of a column in one chunk: an array, or what reads some of them when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, wanted: Any, /) -> NDArray[Any]: ...


class ChunkedColumn:
    """Values of a column in the order of its chunks. Numbers, runs and arrays of places are read as of an array.

    A run inside a chunk, as those of samples are, is what the chunk gives: of an array a view; one over several chunks is a copy.
    """

    def __init__(self, parts: Sequence[Part], dtype: np.dtype[Any]) -> None:
        """``parts`` are the values of each chunk."""
        assert parts, "a column without a chunk is an empty array"
        self.parts, self.dtype = parts, dtype
        self._starts = np.cumsum([0, *map(len, parts)])
        self._bounds: list[int] = self._starts.tolist()  # numbers of Python's are found ten times as fast

    def __len__(self) -> int:
        return self._bounds[-1]

    def chunks(self) -> Iterator[NDArray[Any]]:
        """Yield the values chunk by chunk, each once."""
        return (part[:] for part in self.parts)

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
        place -= self._bounds[number]
        return self.parts[number][place : place + 1][0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all values as one array, which has to fit into memory."""
        whole = np.concatenate(list(self.chunks()))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def tolist(self) -> list[Any]:
        """Return all values as numbers."""
        return np.asarray(self).tolist()  # type: ignore[no-any-return]

    def chunks_of(self, places: NDArray[np.int64]) -> list[int]:
        """Return the numbers of the chunks in which some values lie, each once."""
        found = np.searchsorted(self._starts[1:-1], places, side="right")
        return np.unique(found).tolist()  # type: ignore[no-any-return]

    def _run(self, start: int, stop: int, step: int) -> NDArray[Any]:
        first = self._chunk_of(start)
        begin = self._bounds[first]
        if step > 0 and stop <= self._bounds[first + 1]:
            return self.parts[first][start - begin : max(stop, start) - begin : step]
        if step != 1:
            return np.asarray(self)[start : stop if stop >= 0 else None : step]
        last = self._chunk_of(stop - 1)
        pieces = [self.parts[first][start - begin :]]
        pieces += [self.parts[number][: stop - self._bounds[number]] for number in range(first + 1, last + 1)]
        return np.concatenate(pieces)

    def _several(self, places: NDArray[Any]) -> NDArray[Any]:
        places = np.where(places < 0, places + len(self), places)
        found = np.empty(len(places), self.dtype)
        owners = np.minimum(np.searchsorted(self._starts, places, side="right"), len(self._starts) - 1) - 1
        order = np.argsort(owners, kind="stable")
        bounds = np.flatnonzero(np.diff(owners[order])) + 1
        for own in np.split(order, bounds) if len(order) else ():
            number = int(owners[own[0]])
            found[own] = self.parts[number][places[own] - self._starts[number]]
        return found

    def _chunk_of(self, place: int) -> int:
        return min(max(bisect_right(self._bounds, place) - 1, 0), len(self._bounds) - 2)


def fetch_ahead(column: NDArray[Any] | ChunkedColumn, places: NDArray[np.int64]) -> None:
    """Fetch at once the chunks in which some values lie, where they are behind an address (``remote_cache.RemotePart``)."""
    if isinstance(column, ChunkedColumn) and (fetch := getattr(column.parts[0], "fetch_with", None)) is not None:
        fetch([column.parts[number] for number in column.chunks_of(places)])


def pieces_of(column: NDArray[Any] | ChunkedColumn) -> Iterator[NDArray[Any]]:
    """Yield the values of a column run by run, so that a large one need not be in memory at once."""
    if isinstance(column, ChunkedColumn):
        yield from column.chunks()
    else:
        yield column
