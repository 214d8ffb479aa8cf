"""Attention of transformers' models by mt_core's: documents stay apart, ranks may share rows, and no mask is made.

Shapes: B rows, T tokens, S keys (those in the cache too), N query heads, K key/value heads, H head width, W width of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import Cache
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from mt_core import UsageError
from mt_core.nn import BlockContext, KVCache

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
    if rule is not None and rule.window != sliding_window:
        unknown += [f"a window of {sliding_window} where its mask has {rule.window}"]
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
        window=sliding_window,
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


States = dict[Hashable, Tensor]
"""States of a layer by name, rows first."""


class CacheOfModel(Cache):  # type: ignore[misc]
    """mt_core's cache as transformers' models see it: all layers have seen the same tokens.

    What a layer keeps beside keys and values (the last inputs of a convolution, the state of a recurrence) is a state of its own there,
    under another number, so that rows are picked from it as from all else. Attention of a type's own gets ``contiguous`` keys and values.
    """

    def __init__(self, kept: KVCache, *, contiguous: bool = False) -> None:
        Cache.__init__(self, layers=[])  # what is between them makes layers of its own
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

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        """Return the state of linear attention, (B, N, H, H), or ``None``; ``MiniMaxCache`` calls it so."""
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        """Keep the state of linear attention."""
        self.update_recurrent_state(linear_cache, layer_idx)

    def _states(self, layer: int) -> States:
        return states_of(self.kept, layer)

    def _keep(self, layer: int, name: Hashable, state: Tensor) -> None:
        keep_states(self.kept, layer, {**self._states(layer), name: state})


def cache_for(asked: object, kept: KVCache, *, contiguous: bool) -> CacheOfModel:
    """Return the cache as a model sees it. ``asked`` is the annotation of its argument, whose class some models insist on."""
    theirs = [each for each in get_args(asked) if isinstance(each, type) and issubclass(each, Cache)]
    bases = (CacheOfModel, *(each for each in theirs if not issubclass(CacheOfModel, each)))
    cls: type[CacheOfModel] = CacheOfModel if len(bases) == 1 else type(CacheOfModel.__name__, bases, {})
    return cls(kept, contiguous=contiguous)


def states_of(kept: KVCache, layer: int) -> States:
    """Return what a layer keeps beside keys and values, rows first, by name; nothing before its first tokens."""
    found: States | None = kept.get(_number_of_states(layer))
    return {} if found is None else found


def keep_states(kept: KVCache, layer: int, states: States) -> None:
    """Keep them in the place of those of before."""
    kept.put(_number_of_states(layer), states)


@contextmanager
def lend_states(block: Any, paths: Sequence[str], kept: KVCache | None, layer: int) -> Iterator[None]:
    """Let modules of a block that keep a state themselves, in the attributes of these paths, have that of the cache meanwhile: rows are
    then picked from it as from all else, and no module remembers a text."""
    if not paths or kept is None:
        yield
        return
    states, modules = states_of(kept, layer), dict(block.named_modules())
    places = [(path, modules.get(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in paths]
    places = [
        (path, module, name) for path, module, name in places if hasattr(module, name)
    ]  # blocks are of several kinds
    if not places:
        yield
        return
    for path, module, name in places:
        setattr(module, name, states.get(path))
    try:
        yield
        keep_states(kept, layer, {path: getattr(module, name) for path, module, name in places})
    finally:
        for _, module, name in places:
            setattr(module, name, None)


def _number_of_states(layer: int) -> int:
    """Number of a layer's states in the cache, which has its keys and values under the layer's own."""
    return -1 - layer
