"""First values of parameters that several layers share (``mt_core.nn.SharedParameters``)."""

from __future__ import annotations

from torch import Generator, Tensor

from mt_core.adapters import uniform


def spread(tensor: Tensor, generator: Generator) -> None:
    """Fill as LoRA's A begins: ±1/sqrt(last dimension)."""
    tensor.copy_(uniform(tensor, generator))


def zero(tensor: Tensor, generator: Generator) -> None:
    """Fill as LoRA's B begins."""
    tensor.zero_()
