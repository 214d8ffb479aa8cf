"""mt_core's cache as transformers' models see it: keys and values, and states of convolutions and recurrences.

Shapes: B rows, T tokens, S keys (those in the cache too), N query heads, K key/value heads, H head width, C channels, L kept inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache

from mt_core.nn import KVCache

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
        """(B, K, T, H) twice -> (B, K, S, H) twice: keys and values of all tokens so far."""
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
    """Keep the states of a layer in the place of those of before."""
    kept.put(_number_of_states(layer), states)


@contextmanager
def lend_states(block: Any, paths: Sequence[str], kept: KVCache | None, layer: int) -> Iterator[None]:
    """Let modules of a block that keep a state themselves, in the attributes of these paths, have that of the cache meanwhile: rows are
    then picked from it as from all else, and no module remembers a text."""
    if not paths or kept is None:
        yield
        return
    states, modules = states_of(kept, layer), dict(block.named_modules())
    split = [(path, *path.rpartition(".")[::2]) for path in paths]
    found = [(path, modules.get(owner), name) for path, owner, name in split]
    places = [each for each in found if hasattr(each[1], each[2])]  # blocks are of several kinds
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
