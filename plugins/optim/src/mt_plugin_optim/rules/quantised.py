"""torchao's AdamW on quantised moments (https://arxiv.org/abs/2110.02861, https://arxiv.org/abs/2309.01507), which are plain tensors here.

torchao keeps objects in the state of its optimizers, which no checkpoint of ours holds; its objects are made around our tensors
for an update. On a GPU the update is compiled, as torchao does; on a CPU that would need a compiler, and is plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchao.optim.adam import single_param_adam
from torchao.optim.subclass_4bit import OptimState4bit
from torchao.optim.subclass_8bit import OptimState8bit
from torchao.optim.subclass_fp8 import OptimStateFp8

from .rule import Group, RuleOptimizer, State, start_moments

MOMENTS = {"exp_avg": True, "exp_avg_sq": False}
"""Whether each of them has a sign."""


class _QuantisedAdamW(RuleOptimizer):
    """AdamW. Tensors that are small, or no multiple of a block, keep 32 bits."""

    kind: Any

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        if weight.numel() < group["min_size"] or weight.numel() % group["block_size"]:
            start_moments(state, weight)
            return
        for key, signed in MOMENTS.items():
            made = self.zeros(weight, signed, group["block_size"])
            state.update({f"{key}_{part}": getattr(made, part) for part in made.tensor_attrs})

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        means = [self._mean(weight, state, key) for key in MOMENTS]
        rate, options = torch.tensor(group["lr"]), [group[key] for key in ("beta1", "beta2", "weight_decay", "eps")]
        _update(weight)(weight.detach(), gradient, state["step"].float(), *means, None, rate, *options, True, False)

    def zeros(self, weight: Tensor, signed: bool, block_size: int) -> Any:
        """A moment of a weight."""
        return self.kind.zeros(weight.shape, signed, block_size, weight.device, weight.dtype)

    def about(self, weight: Tensor, signed: bool) -> list[Any]:
        """Return what ``kind`` has beside its tensors."""
        raise NotImplementedError

    def _mean(self, weight: Tensor, state: State, key: str) -> Tensor:
        if key in state:
            return state[key]  # type: ignore[no-any-return]
        parts = [state[f"{key}_{part}"] for part in self.kind.tensor_attrs]
        return self.kind(*parts, *self.about(weight, MOMENTS[key]))  # type: ignore[no-any-return]


class AdamW8bit(_QuantisedAdamW):
    """Blocks of 8-bit numbers on a map that is finer near zero."""

    kind = OptimState8bit

    def about(self, weight: Tensor, signed: bool) -> list[Any]:
        return [signed, weight.dtype]


class AdamW4bit(_QuantisedAdamW):
    """Two numbers in a byte."""

    kind = OptimState4bit

    def about(self, weight: Tensor, signed: bool) -> list[Any]:
        return [signed, weight.shape, weight.dtype]


class AdamWFp8(_QuantisedAdamW):
    """Blocks of E4M3 numbers."""

    kind = OptimStateFp8

    def zeros(self, weight: Tensor, signed: bool, block_size: int) -> Any:
        return self.kind.zeros(weight.shape, block_size, weight.device, weight.dtype)

    def about(self, weight: Tensor, signed: bool) -> list[Any]:
        return [weight.dtype]


def _update(weight: Tensor) -> Callable[..., None]:
    return torch.compile(single_param_adam, fullgraph=True, dynamic=False) if weight.is_cuda else single_param_adam
