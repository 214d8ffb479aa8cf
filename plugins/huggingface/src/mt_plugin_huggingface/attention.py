"""Attention of transformers' models by mt_core's: documents stay apart, ranks may share rows, and no mask is made.

Shapes: B rows, T tokens, S keys (those in the cache too), N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import Cache
from transformers.modeling_utils import AttentionInterface

from mt_core import UsageError
from mt_core.nn import BlockContext, KVCache

NAME = "mt"
"""The attention's name at transformers. No mask function has it, so that models make no mask."""

_CONTEXT: ContextVar[BlockContext] = ContextVar("context of the block that runs")

_WITHOUT_MEANING = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "use_cache",
        "cache_position",
        "past_key_values",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "logits_to_keep",
        "num_items_in_batch",
    }
)
"""What models hand on and attention has no use for. Any other keyword is refused: ignored, it would be wrong in silence."""


def register() -> None:
    """Make the attention known to transformers."""
    AttentionInterface.register(NAME, attend)


@contextmanager
def inside(context: BlockContext) -> Iterator[None]:
    """Run a block in this context. Not as a keyword: some layers hand on none."""
    token = _CONTEXT.set(context)
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def current_context() -> BlockContext:
    """The context of the block, or of the frame, that runs."""
    return _CONTEXT.get()


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """(B, N, T, H), (B, K, S, H), (B, K, S, H) -> (B, T, N, H), as transformers calls it. Raises ``UsageError`` for other wishes."""
    unknown = [name for name, given in others.items() if given is not None and name not in _WITHOUT_MEANING]
    unknown += ["attention_mask"] * (attention_mask is not None) + ["is_causal=False"] * (is_causal is False)
    unknown += ["dropout"] * bool(dropout) + ["values of another width"] * (value.shape[-1] != query.shape[-1])
    if unknown:
        raise UsageError(f"{type(module).__name__} asks attention for {', '.join(unknown)}, which is not done here")
    context = _CONTEXT.get()
    q_BTNH, k_BSKH, v_BSKH = (each.transpose(1, 2) for each in (query, key, value))
    options: Any = {"scale": scaling, "window": sliding_window, "softcap": softcap}
    return context.attention(q_BTNH, k_BSKH, v_BSKH, context, **options), None


class CacheOfModel(Cache):  # type: ignore[misc]
    """mt_core's cache as transformers' models see it: all layers have seen the same tokens.

    What a layer keeps beside keys and values (the last inputs of a convolution, the state of a recurrence) is a state of its own there,
    under another number, so that rows are picked from it as from all else. Attention of a type's own gets ``contiguous`` keys and values.
    """

    def __init__(self, kept: KVCache, *, contiguous: bool = False) -> None:
        super().__init__(layers=[])
        self.kept, self._contiguous = kept, contiguous

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **named: Any) -> Any:
        """(B, K, T, H) twice -> (B, K, S, H) twice, those of all tokens so far."""
        k_BSKH, v_BSKH = self.kept.append(layer_idx, key_states.transpose(1, 2), value_states.transpose(1, 2))
        k_BKSH, v_BKSH = k_BSKH.transpose(1, 2), v_BSKH.transpose(1, 2)
        return (k_BKSH.contiguous(), v_BKSH.contiguous()) if self._contiguous else (k_BKSH, v_BKSH)

    def get_seq_length(self, *args: Any, **named: Any) -> int:
        """Return the number of tokens seen so far."""
        return self.kept.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of keys that so many new tokens see, and the place of the first."""
        return self.kept.length + query_length, 0

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return the last inputs of a convolution, (B, C, L), or ``None``."""
        return self._states(layer_idx).get(("convolution", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return the state of a recurrence, rows first, or ``None``."""
        return self._states(layer_idx).get(("recurrence", state_idx))

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Return whether tokens have been seen before."""
        return self.kept.length > 0

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return ``False``: no token is taken back."""
        return False

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **named: Any
    ) -> Tensor:
        """(B, C, T), new inputs -> (B, C, L + T), those and the L kept ones before them; zeros in front of too few."""
        before = self.get_conv_state(layer_idx, state_idx)
        if before is None:
            length = conv_kernel_size or conv_states.shape[-1]
            inputs = pad(conv_states, (max(0, length - conv_states.shape[-1]), 0))
        else:
            length = conv_kernel_size or before.shape[-1]
            inputs = torch.cat([before, conv_states], -1)
        self._keep(layer_idx, ("convolution", state_idx), inputs[..., -length:].clone())
        return inputs

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **named: Any
    ) -> Tensor:
        """Keep the state of a recurrence, rows first."""
        self._keep(layer_idx, ("recurrence", state_idx), recurrent_states)
        return recurrent_states

    def _states(self, layer: int) -> dict[tuple[str, int], Tensor]:
        found: dict[tuple[str, int], Tensor] | None = self.kept.get(_number_of_states(layer))
        return {} if found is None else found

    def _keep(self, layer: int, name: tuple[str, int], state: Tensor) -> None:
        self.kept.put(_number_of_states(layer), {**self._states(layer), name: state})


def _number_of_states(layer: int) -> int:
    """Number of a layer's states in the cache, which has its keys and values under the layer's own."""
    return -1 - layer
