"""Attention of transformers' models by mt_core's: documents stay apart, ranks may share rows, and no mask is made.

Shapes: B rows, T tokens, S keys (those in the cache too), N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
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
    """mt_core's cache as transformers' models see it: all layers have seen the same tokens."""

    def __init__(self, kept: KVCache) -> None:
        super().__init__(layers=[])
        self.kept = kept

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **named: Any) -> Any:
        """(B, K, T, H) twice -> (B, K, S, H) twice, those of all tokens so far."""
        k_BSKH, v_BSKH = self.kept.append(layer_idx, key_states.transpose(1, 2), value_states.transpose(1, 2))
        return k_BSKH.transpose(1, 2), v_BSKH.transpose(1, 2)

    def get_seq_length(self, *args: Any, **named: Any) -> int:
        """Return the number of tokens seen so far."""
        return self.kept.length
