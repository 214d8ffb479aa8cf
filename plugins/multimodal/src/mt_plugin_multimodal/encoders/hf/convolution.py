"""Convolutions whose weight is a length times a direction (https://arxiv.org/abs/1602.07868), as encoders of sound have for positions.

torch's own computes the weight wherever it is looked up, so that ZeRO 3, which gathers parameters where a module is called, has only a
part of them there. Names are torch's.

Shapes: I items, C channels, T features, G channels of a group, K places of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class DirectedWeight(nn.Module):
    """A direction (C, G, K) for each place of a kernel, and its length (1, 1, K)."""

    def __init__(self, conv: nn.Conv1d) -> None:
        super().__init__()
        kernel = conv.kernel_size[0]
        self.original0 = nn.Parameter(torch.ones(1, 1, kernel))
        self.original1 = nn.Parameter(torch.empty(conv.out_channels, conv.in_channels // conv.groups, kernel))

    def forward(self) -> Tensor:
        """Return the weight (C, G, K)."""
        return torch._weight_norm(self.original1, self.original0, 2)


class DirectedConvolution(nn.Module):
    """Stands for a convolution, with its padding and groups; it has a bias."""

    def __init__(self, conv: nn.Conv1d) -> None:
        super().__init__()
        self.padding, self.groups = conv.padding, conv.groups
        self.bias = nn.Parameter(torch.zeros(conv.out_channels))
        self.parametrizations = nn.ModuleDict({"weight": DirectedWeight(conv)})

    def forward(self, x_ICT: Tensor) -> Tensor:
        """(I, C, T) -> (I, C, T + 2 · padding - K + 1)."""
        weight_CGK = self.parametrizations["weight"]()
        return nn.functional.conv1d(x_ICT, weight_CGK, self.bias, padding=self.padding, groups=self.groups)


@contextmanager
def directed_convolutions() -> Iterator[None]:
    """Have models that are built meanwhile take ours where they ask torch for such a convolution."""
    before = parametrizations.weight_norm

    def direct(conv: nn.Module, name: str = "weight", dim: int = 2) -> nn.Module:
        assert isinstance(conv, nn.Conv1d), "positions of sound are one-dimensional"
        assert (name, dim) == ("weight", 2), "a length for each place of the kernel"
        return DirectedConvolution(conv)

    parametrizations.weight_norm = direct  # type: ignore[assignment]
    try:
        yield
    finally:
        parametrizations.weight_norm = before
