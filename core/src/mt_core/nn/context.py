"""Context of a block, beside the hidden states: positions, documents, attention, and what generation keeps between calls.

Shapes: B rows, T query tokens, S key tokens (T plus what a cache holds), N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, Unpack

import torch
from torch import Tensor

from mt_core.nn.batch import DocumentLengths


class KVCache:
    """State of each block between calls in generation: keys and values, or any state of its own.

    ``length`` is the number of tokens seen so far; the model advances it after its last block. ``padding_B`` says how
    many of them, at the start of each row, are padding that no real token may see; ``None`` means none in any row.
    """

    def __init__(self, padding_B: Tensor | None = None) -> None:
        self.length = 0
        self.padding_B = padding_B
        self._state: dict[int, Any] = {}

    def get(self, layer: int) -> Any:
        """The state that this layer stored last, or ``None``."""
        return self._state.get(layer)

    def put(self, layer: int, state: Any) -> None:
        """Store the state of one layer."""
        self._state[layer] = state

    def append(self, layer: int, k_BTKH: Tensor, v_BTKH: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values of T new tokens; returns those of all tokens so far."""
        past = self.get(layer)
        if past is not None:
            k_BTKH, v_BTKH = torch.cat([past[0], k_BTKH], 1), torch.cat([past[1], v_BTKH], 1)
        self.put(layer, (k_BTKH, v_BTKH))
        return k_BTKH, v_BTKH

    def select(self, rows_R: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times. Every tensor of a state has its rows first."""
        self._state = {layer: _rows(state, rows_R) for layer, state in self._state.items()}
        if self.padding_B is not None:
            self.padding_B = self.padding_B.index_select(0, rows_R)


def _rows(state: Any, rows_R: Tensor) -> Any:
    if isinstance(state, Tensor):
        return state.index_select(0, rows_R)
    if isinstance(state, dict):
        return {key: _rows(value, rows_R) for key, value in state.items()}
    return type(state)(_rows(value, rows_R) for value in state) if isinstance(state, tuple | list) else state


class AttentionOptions(TypedDict, total=False):
    """Keywords of an ``AttentionFn``: factor of the scores, tokens that a query sees, cap of the scores."""

    scale: float | None
    window: int | None
    softcap: float | None


class AttentionFn(Protocol):
    """Attention as a block calls it; the engine passes it in through ``BlockContext``."""

    def __call__(
        self,
        q_BTNH: Tensor,
        k_BSKH: Tensor,
        v_BSKH: Tensor,
        context: BlockContext,
        **options: Unpack[AttentionOptions],
    ) -> Tensor:
        """(B, T, N, H), (B, S, K, H), (B, S, K, H) -> (B, T, N, H).

        A token sees the tokens before it in its own document, and itself; never the padding that ``context.cache``
        names. N is a multiple of K. ``scale`` defaults to 1/sqrt(H). With a ``window`` (tokens) a token sees itself and
        the ``window - 1`` before it (https://arxiv.org/abs/2004.05150); with a ``softcap`` c a score x counts as
        c · tanh(x / c) (https://arxiv.org/abs/2408.00118, section 2).
        """
        ...


@dataclass(frozen=True)
class BlockContext:
    """Context of all blocks, beside the hidden states. It is made from the batch alone, as every pipeline stage does.

    ``shared`` lets the first block compute something for all (rotary tables); it belongs to one forward of one stage, so
    a block computes what it does not find there. ``labels_BT`` (-100 where nothing is trained) is for what counts tokens: how much
    padding there is hangs on how rows are divided. ``lengths_BT`` are the tokens of each token's document, without padding.
    """

    positions_BT: Tensor
    document_ids_BT: Tensor
    attention: AttentionFn
    cache: KVCache | None = None
    document_lengths: DocumentLengths | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    labels_BT: Tensor | None = None
    lengths_BT: Tensor | None = None

    def over_row(self, value: Tensor) -> Tensor:
        """A sum over the tokens of each row that are here, over all of them: ranks may share rows. It has no gradient."""
        added = getattr(self.attention, "over_row", None)
        return value.detach() if added is None else added(value.detach())
