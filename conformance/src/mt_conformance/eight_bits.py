"""The kit's own quantizer: what a quantized base is, without a package for it. Shapes: E inputs, F outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mt_core.adapters import linear_layers
from mt_core.nn import StoredLinear, TrainModel


class EightBits:
    """Implements ``mt_core.model_protocols.Quantizer``: every linear layer but the head in eight bits."""

    def replace(self, model: TrainModel) -> None:
        """See ``Quantizer``."""
        for name, linear in linear_layers(model).items():
            if isinstance(linear, nn.Linear):
                model.set_submodule(name, EightBitLinear(linear))


class EightBitLinear(StoredLinear):
    """A byte a weight, and a scale for each output."""

    merges = False
    bits: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_parameter("bias", linear.bias)
        shape = (self.out_features, self.in_features)
        self.register_buffer("bits", torch.empty(shape, dtype=torch.int8), persistent=False)
        self.register_buffer("scales", torch.empty(self.out_features, 1), persistent=False)

    def dense_weight(self) -> Tensor:
        """See ``StoredLinear``."""
        return self.bits.float() * self.scales.float()

    @torch.no_grad()
    def put_dense_weight(self, weight_FE: Tensor) -> None:
        """See ``StoredLinear``."""
        self.scales.copy_(weight_FE.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127)
        self.bits.copy_((weight_FE.float() / self.scales).round())

    def forward(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        return functional.linear(x, self.dense_weight().to(x.dtype), self.bias)
