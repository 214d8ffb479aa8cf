"""Attention of transformers' models by mt_core's: documents stay apart, ranks may share rows, and no mask is made.

Shapes: B rows, T tokens, S keys (those in the cache too), N query heads, K key/value heads, H head width, W width of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from mt_core import UsageError
from mt_core.nn import BlockContext

if TYPE_CHECKING:
    from .frame import Call

NAME = "mt"
"""Name of the attention at transformers. No mask function has it, so that models make no mask."""
RULES = "mt-rules"
"""Name of the attention while a model is asked by which rules it would make its masks."""


class Rule(NamedTuple):
    """Rule of a mask: a token sees all tokens before it, those of a window (tokens), or those of its chunk (tokens)."""

    window: int | None = None
    chunk: int | None = None


class _Current(NamedTuple):
    context: BlockContext
    rule: Rule | None


_CURRENT: ContextVar[_Current] = ContextVar("context and rule of the block that runs")

_UNUSED_KEYWORDS = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "use_cache",
        "cache_position",
        "past_key_values",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "logits_to_keep",
        "num_items_in_batch",
    }
)
"""Keywords that models pass on to attention, and that change nothing of it. Any other is refused: ignored, it would be wrong in silence."""


def register() -> None:
    """Make the attention known to transformers."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(RULES, _Mask)


@contextmanager
def use_context(context: BlockContext, rule: Rule | None = None) -> Iterator[None]:
    """Let attention of the blocks that run meanwhile have this context and rule, which no keyword brings: some layers pass none on."""
    token = _CURRENT.set(_Current(context, rule))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def read_rules(model: nn.Module, run: Callable[[], Sequence[Call]]) -> list[Rule]:
    """Ask a model by which rule it makes the mask of each block; ``run`` is its frame's forward on two tokens on the CPU.

    Some models, as Llama 4, say nowhere else what a block sees. Raises ``UsageError`` for a rule that is not known here.
    """
    modules = (each for each in model.modules() if hasattr(getattr(each, "config", None), "_attn_implementation"))
    configs: dict[int, Any] = {id(each.config): each.config for each in modules}
    names = {key: config._attn_implementation_internal for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation_internal = RULES
    try:
        calls = run()
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = names[key]
    masks = [
        next((each for each in (*call.args, *call.named.values()) if isinstance(each, _Mask)), None) for call in calls
    ]
    rules = {id(mask): Rule() if mask is None else mask.rule() for mask in masks}
    return [rules[id(mask)] for mask in masks]


class _Mask:
    """A mask that is not made, with the function by which transformers would fill it: ``function(row, head, query, key)``."""

    def __init__(self, mask_function: Any, local_size: int | None = None, use_vmap: bool = False, **named: Any) -> None:
        self._function, self._size, self._has_more = mask_function, local_size, use_vmap

    def rule(self) -> Rule:
        """Find the rule by asking about some pairs of tokens; ``use_vmap`` says that there is a pattern on top of it."""
        size = self._size or 8
        queries_Q1 = torch.tensor([0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 3 * size])[:, None]
        keys_S, first = torch.arange(3 * size + 2), torch.tensor(0)
        is_before_QS = keys_S <= queries_Q1
        rules = {Rule(): is_before_QS}
        if self._size:
            rules[Rule(window=size)] = is_before_QS & (keys_S > queries_Q1 - size)
            rules[Rule(chunk=size)] = is_before_QS & (keys_S // size == queries_Q1 // size)
        seen_QS = self._function(first, first, queries_Q1, keys_S).expand_as(is_before_QS)
        found = [rule for rule, expected_QS in rules.items() if torch.equal(seen_QS, expected_QS)]
        if self._has_more or not found:
            raise UsageError(
                "this model's mask is neither causal nor a window nor chunks, which is all that attention does here; use another model"
            )
        return found[0]


def current_context() -> BlockContext:
    """Return the context of the block, or of the frame, that runs."""
    return _CURRENT.get().context


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
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """(B, N, T, H), (B, K, S, H), (B, K, S, W) -> (B, T, N, W), as transformers calls it. Raises ``UsageError`` for other wishes."""
    unknown = [name for name, given in others.items() if given is not None and name not in _UNUSED_KEYWORDS]
    unknown += ["attention_mask"] * (attention_mask is not None) + ["is_causal=False"] * (is_causal is False)
    unknown += ["dropout"] * bool(dropout)
    context, rule = _CURRENT.get()
    window = sliding_window if rule is None else rule.window  # phimoe has one in its mask, and asks for none
    if sliding_window not in (None, window):
        unknown += [f"a window of {sliding_window} where its mask has {window}"]
    if unknown:
        raise UsageError(
            f"{type(module).__name__} asks attention for {', '.join(unknown)}, which is not done here; use another model"
        )
    q_BTNH, k_BSKH, v_BSKW = (each.transpose(1, 2) for each in (query, key, value))
    q_BTNH = _scale_by_document(module, q_BTNH, context, k_BSKH.shape[1])
    chunk = None if rule is None else rule.chunk
    out_BTNW = context.attention(
        q_BTNH,
        k_BSKH,
        v_BSKW,
        context,
        scale=scaling,
        window=window,
        softcap=softcap,
        sinks_N=s_aux,
        chunk=chunk,
    )
    return out_BTNW, None


def _scale_by_document(module: Any, q_BTNH: Tensor, context: BlockContext, seen: int) -> Tensor:
    """Llama 4 scales the queries of some blocks by their places in the row, from ``floor_scale`` tokens on: put right to the places
    in their documents, of which it is not told, where a row holds several, is shared by ranks, or is padded in front."""
    if not getattr(module, "attn_temperature_tuning", False) or module.use_rope:
        return q_BTNH

    def scale(places: Tensor) -> Tensor:
        steps: Tensor = torch.floor((places.float() + 1.0) / module.floor_scale)
        return torch.log1p(steps) * float(module.attn_scale) + 1.0

    in_row_T = torch.arange(seen - q_BTNH.shape[1], seen, device=q_BTNH.device)
    ratio_BT = scale(context.positions_BT) / scale(in_row_T)
    return (q_BTNH * ratio_BT[..., None, None]).to(q_BTNH.dtype)
