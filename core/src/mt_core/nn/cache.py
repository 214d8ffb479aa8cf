"""State that generation keeps between calls: keys and values in tensors that are allocated ahead, or any state of a block's own.

Shapes: B rows, R rows of a larger tensor, T new tokens, S tokens so far, K key/value heads, H head width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

AHEAD = 128
"""Tokens for which room is allocated at a time, so that what is there is copied once in so many tokens."""


class KVCache:
    """State of each block between calls in generation: keys and values, or any other state.

    ``length`` is the number of tokens seen so far; the model advances it after its last block. ``padding_B`` says how
    many of them, at the start of each row, are padding that no real token may see; ``None`` means none in any row.
    A decoder lets rows come and go between two calls (``mt_train.generation.row_cache``).
    """

    def __init__(self, padding_B: Tensor | None = None) -> None:
        self.length = 0
        self.padding_B = padding_B
        self._places: int | None = None
        self._state: dict[int, Any] = {}

    def get(self, layer: int) -> Any:
        """The state that this layer stored last, or ``None``."""
        state = self._state.get(layer)
        return state.views() if isinstance(state, GrowingLayer) else state

    def put(self, layer: int, state: Any) -> None:
        """Store the state of one layer: tensors whose first dimension is the rows, alone or in mappings and sequences, and what is the
        same for all rows. Where rows of different lengths come together, a tensor with fewer entries in dimension 1 gets zeros in
        front of them."""
        self._state[layer] = state

    def append(self, layer: int, k_BTKH: Tensor, v_BTKH: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values of T new tokens; returns those of all tokens so far, which are valid until the next call."""
        kept = self._state.get(layer)
        if not isinstance(kept, GrowingLayer):
            kept = self._state[layer] = GrowingLayer((k_BTKH[:, :0], v_BTKH[:, :0]) if kept is None else kept)
        kept.add((k_BTKH, v_BTKH), self._places)
        return kept.views()


class GrowingLayer:
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
        """Write keys and values of new tokens behind those here, in at most so many ``places`` (rows times tokens)."""
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
        k, v = (make_tensor(x, rows, tokens) for x in self.tensors)
        for x, old in zip((k, v), self.views(), strict=True):
            x[: self.rows, before : before + self.length] = old
        self.tensors, self.first, self.last = (k, v), before, before + self.length


def make_tensor(x_RSKH: Tensor, rows: int, tokens: int) -> Tensor:
    """(rows, tokens, K, H) without values, in memory (rows, K, tokens, H): attention reads the keys of a head one behind the other."""
    return x_RSKH.new_empty(rows, x_RSKH.shape[2], tokens, *x_RSKH.shape[3:]).transpose(1, 2)
