"""Projections that adapters and quantizers reach: those of GPT-2 and its kin, which store their weight transposed, and those of mixers of
tokens, whose weights kernels would take past what stands for the projection.

Shapes: E inputs, F outputs.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mt_core import whole_shape
from mt_core.nn import AdaptedLinear, StoredLinear

from .frame import mix_in


def count_weights(module: nn.Module) -> int:
    """Return the numbers of a module's weights; those that a quantizer has stored count as they multiply."""
    found = sum(math.prod(whole_shape(parameter)) for parameter in module.parameters())
    for each in module.modules():
        base = each.base if isinstance(each, AdaptedLinear) else each
        if isinstance(base, StoredLinear) and not isinstance(base, TransposedLinear):
            found += base.in_features * base.out_features
    return found


def use_transposed_linear(model: nn.Module) -> None:
    """Let every ``Conv1D`` of a model be a ``StoredLinear`` too, with its parameters and its forward."""
    for module in model.modules():
        if isinstance(module, Conv1D):
            module.__class__ = TransposedLinear
            module.in_features, module.out_features = module.nx, module.nf


def use_projections(model: nn.Module, read_weights: Collection[str]) -> None:
    """Let mixers with a convolution call their projections where something stands for these. Those of which the weights are read in any
    case (``read_weights``) are no linear layers any more: nothing can stand for them."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in read_weights:
            module.__class__ = _Weights  # type: ignore[assignment]
        if any(isinstance(child, nn.Conv1d) for child in module.children()):
            mix_in(module, _Mixer)


class _Weights(nn.Module):
    """Weight and bias that a module reads."""


class _Mixer:
    """A mixer of Mamba and its kin. In training a kernel gets the weights of its projections, and an adapter would do nothing."""

    def forward(self, *args: Any, **named: Any) -> Any:
        children = self.children()  # type: ignore[attr-defined]
        if any(isinstance(child, AdaptedLinear | StoredLinear) for child in children):
            self.training = False
        return super().forward(*args, **named)  # type: ignore[misc]


class TransposedLinear(StoredLinear, Conv1D):  # type: ignore[misc]
    """Multiplies by ``weight`` (E, F)."""

    weight: Tensor
    is_transposed = True

    def dense_weight(self) -> Tensor:
        """See ``StoredLinear``."""
        return self.weight.detach().T.to(torch.float32, copy=True)

    @torch.no_grad()
    def put_dense_weight(self, weight_FE: Tensor) -> None:
        """See ``StoredLinear``."""
        self.weight.copy_(weight_FE.T)
