"""Projections of GPT-2 and its kin, which store their weight transposed, as linear layers that adapters and quantizers know.

Shapes: E inputs, F outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mt_core.nn import StoredLinear


def use_transposed_linear(model: nn.Module) -> None:
    """Let every ``Conv1D`` of a model be a ``StoredLinear`` too, with its parameters and its forward."""
    for module in model.modules():
        if isinstance(module, Conv1D):
            module.__class__ = TransposedLinear
            module.in_features, module.out_features = module.nx, module.nf


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
