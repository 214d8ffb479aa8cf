"""Layers with an update that is no product of two small matrices. Shapes: E inputs, F outputs, with any dimensions before them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mt_core.adapters import device_of
from mt_core.nn import AdaptedLinear


class AddedLinear(AdaptedLinear):
    """W x + scale · ``added_output(x)``. A variant declares its parameters and writes ``initialise`` and ``added_output``."""

    def __init__(self, base: nn.Module, *, scale: float, dropout: float = 0.0, fp32: bool = False) -> None:
        super().__init__(base)
        self.scale, self.fp32 = scale, fp32
        self.dropout = nn.Dropout(dropout) if dropout else None

    def added_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F), in the dtype of ``x``."""
        raise NotImplementedError

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        inputs = x if self.dropout is None else self.dropout(x)
        out = self.base_output(x)
        added = self.added_output(inputs.to(torch.float32 if self.fp32 else out.dtype))
        return out + (self.scale * added).to(out.dtype)

    def delta_weight(self) -> Tensor:
        """Compute what ``added_output`` does to each input alone; right for what is linear in x."""
        each_EE = torch.eye(self.in_features, device=device_of(self))
        return self.scale * self.added_output(each_EE).mT


class DenseLinear(AddedLinear):
    """An update of the weight's size, made again in the backward: between the passes nothing is kept but x.

    A variant writes ``initialise`` and ``update``; two tensors of the weight's size exist while a pass runs.
    """

    def update(self, dtype: torch.dtype) -> Tensor:
        """Return what is added to the weight, (F, E), without the scale, computed in this dtype."""
        raise NotImplementedError

    def added_output(self, x: Tensor) -> Tensor:
        """See ``AddedLinear``."""
        return checkpoint(self._multiply, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]

    def delta_weight(self) -> Tensor:
        """The scaled update."""
        return self.scale * self.update(torch.float32)

    def _multiply(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.update(x.dtype))


class SeriesLinear(AdaptedLinear):
    """W T x + b with a trained matrix T of the inputs: ``transformed_input`` is x Tᵀ for rows. ``fp32``: that product's precision."""

    def __init__(self, base: nn.Module, *, fp32: bool = False) -> None:
        super().__init__(base)
        self.fp32 = fp32

    def transformed_input(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, E), in the dtype of ``x``."""
        raise NotImplementedError

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        return self.base_output(
            self.transformed_input(x.float()).to(x.dtype) if self.fp32 else self.transformed_input(x)
        )

    def merged_weight(self) -> Tensor:
        """W T."""
        each_EE = torch.eye(self.in_features, device=device_of(self))
        return self.base_weight() @ self.transformed_input(each_EE).mT
