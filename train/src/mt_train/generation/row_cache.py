"""Rows of a cache in generation: they are picked, copied, padded, trimmed and joined, whatever blocks keep of them.

Shapes: B rows, R rows that are picked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mt_core.errors import MtError
from mt_core.nn import KVCache
from mt_core.nn.cache import AHEAD, GrowingLayer, make_tensor


class RowCache(KVCache):
    """A cache whose rows come and go.

    Keys and values take at most ``places`` (rows times tokens) in each layer, where that is given; the caller asks for no more.
    """

    def __init__(self, padding_B: Tensor | None = None, *, places: int | None = None) -> None:
        super().__init__(padding_B)
        self._places = places

    def select(self, rows_R: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times. Every tensor of a state has its rows first."""
        rows = rows_R.tolist()
        for layer, state in self._state.items():
            if isinstance(state, GrowingLayer):
                _select(state, rows, self._places)
            else:
                self._state[layer] = _rows(state, rows_R)
        if self.padding_B is not None:
            self.padding_B = self.padding_B.index_select(0, rows_R)

    def fork(self, rows_R: Tensor) -> RowCache:
        """Return another cache with these rows of this one, which stays as it is; a row may come several times."""
        forked = RowCache(None if self.padding_B is None else self.padding_B.index_select(0, rows_R))
        forked.length = self.length
        for layer in self._state:
            rows = _rows(self.get(layer), rows_R)
            forked._state[layer] = GrowingLayer(rows) if isinstance(self._state[layer], GrowingLayer) else rows
        return forked

    def join(self, other: RowCache) -> None:
        """Add the rows of another cache, which is used up, below those here. Shorter rows, here or there, are padded on the left.

        In a state that is not keys and values, the tensor with fewer entries in dimension 1 gets zeros in front of them.
        """
        assert self._state.keys() == other._state.keys(), "both caches belong to one model, which has seen tokens"
        length = max(self.length, other.length)
        if self.padding_B is not None or other.padding_B is not None or self.length != other.length:
            self.padding_B = torch.cat([each._padding() + length - each.length for each in (self, other)])
        for layer, state in self._state.items():
            if isinstance(state, GrowingLayer):
                _join_layer(state, other._state.pop(layer), self._places)
            else:
                self._state[layer] = _join(state, other._state.pop(layer))
        self.length = length

    def trim(self) -> None:
        """Forget the tokens that are padding in every row. Where a block keeps a state of its own, they stay."""
        if self.padding_B is None:
            return
        least, most = (int(each) for each in self.padding_B.aminmax())
        least = least if self.trims else 0
        for kept in self._growing_layers():
            kept.first += least
        self.length -= least
        self.padding_B = None if most == least else self.padding_B - least

    def spread(self, padding_B: Tensor) -> None:
        """Make rows of the only one that is here. Each begins with so much padding, and lacks as many of its last tokens."""
        padding = padding_B.tolist()
        assert self.trims or not any(padding), "only keys and values can be moved in their row"
        for layer, state in self._state.items():
            if isinstance(state, GrowingLayer):
                _spread(state, padding, self._places)
            else:
                self._state[layer] = _rows(state, padding_B)  # all are the row 0
        self.padding_B = padding_B if any(padding) else None

    def limit(self, places: int | None) -> None:
        """Take at most so many places from now on; what is allocated ahead beyond them is given back."""
        self._places = places
        if places is not None and self.allocated_places > places:
            for kept in self._growing_layers():
                kept.move(kept.rows, kept.length)

    @property
    def trims(self) -> bool:
        """Return whether every state is keys and values, which can lose tokens and be moved in their row."""
        return len(self._growing_layers()) == len(self._state)

    @property
    def allocated_places(self) -> int:
        """Places (rows times tokens) that are allocated for the keys and values of a layer, those ahead included."""
        return max((kept.tensors[0].shape[0] * kept.tensors[0].shape[1] for kept in self._growing_layers()), default=0)

    def _growing_layers(self) -> list[GrowingLayer]:
        states = tuple(self._state.values())  # at once: a thread that computes a prompt adds layers
        return [state for state in states if isinstance(state, GrowingLayer)]

    def _padding(self) -> Tensor:
        first = next(_tensors(self.get(min(self._state))))
        return first.new_zeros(len(first), dtype=torch.long) if self.padding_B is None else self.padding_B


def _select(layer: GrowingLayer, rows: list[int], places: int | None) -> None:
    layer.make_room(len(rows), 0, 0, places)
    places_of_rows = [(to, row) for to, row in enumerate(rows) if to != row]
    for x in layer.tensors if places_of_rows else ():  # the others are where they belong already
        seen = x[:, layer.first : layer.last]
        to, row = torch.tensor(places_of_rows, device=x.device).unbind(1)
        seen.index_copy_(0, to, seen.index_select(0, row))
    layer.rows = len(rows)


def _join_layer(layer: GrowingLayer, other: GrowingLayer, places: int | None) -> None:
    before = max(0, other.length - layer.length)
    rows = slice(layer.rows, layer.rows + other.rows)
    layer.make_room(rows.stop, before, 0, places)
    for x, added in zip(layer.tensors, other.views(), strict=True):
        x[: layer.rows, layer.first - before : layer.first] = 0  # hidden, but zero times an old NaN would not be
        x[rows, layer.first : layer.last - other.length] = 0
        x[rows, layer.last - other.length : layer.last] = added
    layer.first, layer.rows = layer.first - before, rows.stop


def _spread(layer: GrowingLayer, padding: Sequence[int], places: int | None) -> None:
    one, length, count = layer.views(), layer.length, len(padding)
    ahead = AHEAD if places is None else max(0, min(AHEAD, places // count - length))
    k, v = (make_tensor(x, count, length + ahead).zero_() for x in one)
    layer.tensors, layer.rows, layer.first, layer.last = (k, v), count, 0, length
    for x, old in zip(layer.tensors, one, strict=True):
        for row, empty in enumerate(padding):
            x[row, empty:length] = old[0, : length - empty]


def _rows(state: Any, rows_R: Tensor) -> Any:
    if isinstance(state, Tensor):
        return state.index_select(0, rows_R)
    if isinstance(state, dict):
        return {key: _rows(value, rows_R) for key, value in state.items()}
    return type(state)(_rows(value, rows_R) for value in state) if isinstance(state, tuple | list) else state


def _join(first: Any, second: Any) -> Any:
    if isinstance(first, Tensor):
        if first.dim() == 1:
            return torch.cat([first, second])
        sides, longest = (0, 0) * (first.dim() - 2), max(first.shape[1], second.shape[1])
        return torch.cat([pad(x, (*sides, longest - x.shape[1], 0)) for x in (first, second)])
    if isinstance(first, dict):
        return {key: _join(value, second[key]) for key, value in first.items()}
    if isinstance(first, tuple | list):
        return type(first)(_join(*pair) for pair in zip(first, second, strict=True))
    if first != second:
        keep = "keep tensors whose first dimension is the rows, or set ragged_batches = False"
        raise MtError(f"a block keeps {first!r} in the cache for some rows and {second!r} for others; {keep}")
    return first


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    for value in state.values() if isinstance(state, dict) else state if isinstance(state, tuple | list) else ():
        yield from _tensors(value)
