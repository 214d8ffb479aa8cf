"""State that generation keeps between calls: keys and values in tensors that are allocated ahead, or any state of a block's own.

Shapes: B rows, R rows that are picked, T new tokens, S tokens so far, K key/value heads, H head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mt_core.errors import MtError

AHEAD = 128
"""Tokens for which room is allocated at a time, so that what is there is copied once in so many tokens."""


class KVCache:
    """State of each block between calls in generation: keys and values, or any other state.

    ``length`` is the number of tokens seen so far; the model advances it after its last block. ``padding_B`` says how
    many of them, at the start of each row, are padding that no real token may see; ``None`` means none in any row.
    Keys and values take at most ``places`` (rows times tokens) in each layer, where that is given; the caller asks for no more.
    """

    def __init__(self, padding_B: Tensor | None = None, *, places: int | None = None) -> None:
        self.length = 0
        self.padding_B = padding_B
        self._places = places
        self._state: dict[int, Any] = {}

    def get(self, layer: int) -> Any:
        """The state that this layer stored last, or ``None``."""
        state = self._state.get(layer)
        return state.views() if isinstance(state, _GrowingLayer) else state

    def put(self, layer: int, state: Any) -> None:
        """Store the state of one layer."""
        self._state[layer] = state

    def append(self, layer: int, k_BTKH: Tensor, v_BTKH: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values of T new tokens; returns those of all tokens so far, which are valid until the next call."""
        kept = self._state.get(layer)
        if not isinstance(kept, _GrowingLayer):
            kept = self._state[layer] = _GrowingLayer((k_BTKH[:, :0], v_BTKH[:, :0]) if kept is None else kept)
        kept.add((k_BTKH, v_BTKH), self._places)
        return kept.views()

    def select(self, rows_R: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times. Every tensor of a state has its rows first."""
        rows = rows_R.tolist()
        for layer, state in self._state.items():
            if isinstance(state, _GrowingLayer):
                state.select(rows, self._places)
            else:
                self._state[layer] = _rows(state, rows_R)
        if self.padding_B is not None:
            self.padding_B = self.padding_B.index_select(0, rows_R)

    def fork(self, rows_R: Tensor) -> KVCache:
        """Return another cache with these rows of this one, which stays as it is; a row may come several times."""
        forked = KVCache(None if self.padding_B is None else self.padding_B.index_select(0, rows_R))
        forked.length = self.length
        for layer in self._state:
            rows = _rows(self.get(layer), rows_R)
            forked._state[layer] = _GrowingLayer(rows) if isinstance(self._state[layer], _GrowingLayer) else rows
        return forked

    def join(self, other: KVCache) -> None:
        """Add the rows of another cache, which is used up, below those here. Shorter rows, here or there, are padded on the left.

        In a state that is not keys and values, the tensor with fewer entries in dimension 1 gets zeros in front of them.
        """
        assert self._state.keys() == other._state.keys(), "both caches belong to one model, which has seen tokens"
        length = max(self.length, other.length)
        if self.padding_B is not None or other.padding_B is not None or self.length != other.length:
            self.padding_B = torch.cat([each._padding() + length - each.length for each in (self, other)])
        for layer, state in self._state.items():
            if isinstance(state, _GrowingLayer):
                state.join(other._state.pop(layer), self._places)
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
            if isinstance(state, _GrowingLayer):
                state.spread(padding, self._places)
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

    def _growing_layers(self) -> list[_GrowingLayer]:
        return [state for state in self._state.values() if isinstance(state, _GrowingLayer)]

    def _padding(self) -> Tensor:
        first = next(_tensors(self.get(min(self._state))))
        return first.new_zeros(len(first), dtype=torch.long) if self.padding_B is None else self.padding_B


class _GrowingLayer:
    """Keys and values of one layer: rows [0, ``rows``) and tokens [``first``, ``last``) of two larger tensors."""

    def __init__(self, tensors: tuple[Tensor, Tensor]) -> None:
        self.tensors = tensors
        self.rows, self.first, self.last = tensors[0].shape[0], 0, tensors[0].shape[1]

    @property
    def length(self) -> int:
        return self.last - self.first

    def views(self) -> tuple[Tensor, Tensor]:
        k, v = (x[: self.rows, self.first : self.last] for x in self.tensors)
        return k, v

    def add(self, new: tuple[Tensor, Tensor], places: int | None) -> None:
        tokens = new[0].shape[1]
        self.make_room(self.rows, 0, tokens, places)
        for x, added in zip(self.tensors, new, strict=True):
            x[: self.rows, self.last : self.last + tokens] = added
        self.last += tokens

    def make_room(self, rows: int, before: int, after: int, places: int | None) -> None:
        """Have room for so many rows, and for tokens before and after those here."""
        held, capacity = self.tensors[0].shape[:2]
        if rows <= held and before <= self.first and self.last + after <= capacity:
            return
        tokens = before + self.length + after + AHEAD
        wished = held if rows < held <= 2 * rows else rows
        if places is not None and wished * tokens > places:
            wished, tokens = rows, max(tokens - AHEAD, min(tokens, places // rows))
        self.move(wished, tokens, before)

    def move(self, rows: int, tokens: int, before: int = 0) -> None:
        """Into tensors of exactly so many rows and tokens, with room before."""
        k, v = (_room(x, rows, tokens) for x in self.tensors)
        for x, old in zip((k, v), self.views(), strict=True):
            x[: self.rows, before : before + self.length] = old
        self.tensors, self.first, self.last = (k, v), before, before + self.length

    def select(self, rows: list[int], places: int | None) -> None:
        self.make_room(len(rows), 0, 0, places)
        places_of_rows = [(to, row) for to, row in enumerate(rows) if to != row]
        for x in self.tensors if places_of_rows else ():  # the others are where they belong already
            seen = x[:, self.first : self.last]
            to, row = torch.tensor(places_of_rows, device=x.device).unbind(1)
            seen.index_copy_(0, to, seen.index_select(0, row))
        self.rows = len(rows)

    def join(self, other: _GrowingLayer, places: int | None) -> None:
        before = max(0, other.length - self.length)
        rows = slice(self.rows, self.rows + other.rows)
        self.make_room(rows.stop, before, 0, places)
        for x, added in zip(self.tensors, other.views(), strict=True):
            x[: self.rows, self.first - before : self.first] = 0  # hidden, but zero times an old NaN would not be
            x[rows, self.first : self.last - other.length] = 0
            x[rows, self.last - other.length : self.last] = added
        self.first, self.rows = self.first - before, rows.stop

    def spread(self, padding: Sequence[int], places: int | None) -> None:
        one, length, count = self.views(), self.length, len(padding)
        ahead = AHEAD if places is None else max(0, min(AHEAD, places // count - length))
        k, v = (_room(x, count, length + ahead).zero_() for x in one)
        self.tensors, self.rows, self.first, self.last = (k, v), count, 0, length
        for x, old in zip(self.tensors, one, strict=True):
            for row, empty in enumerate(padding):
                x[row, empty:length] = old[0, : length - empty]


def _room(x_RSKH: Tensor, rows: int, tokens: int) -> Tensor:
    """(rows, tokens, K, H) without values, in memory (rows, K, tokens, H): attention reads the keys of a head one behind the other."""
    return x_RSKH.new_empty(rows, x_RSKH.shape[2], tokens, *x_RSKH.shape[3:]).transpose(1, 2)


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
