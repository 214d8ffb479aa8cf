"""MXFP4, the four bits that gpt-oss is published in, as plain tensors.

32 values that follow each other share a power of two (https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf,
section 5.3). A byte of the blocks holds two of them, the earlier one in its lower half.

Shapes: X experts, O outputs, G groups of 32 inputs, I = 32 G inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of E2M1 by their lower three bits; the fourth is the sign."""
BIAS = 127
"""Subtracted from the exponents (E8M0): a scale of 0 stands for 2 ** -127."""


def dequantise(blocks_XOGb: Tensor, scales_XOG: Tensor) -> Tensor:
    """(X, O, G, 16) and (X, O, G), bytes -> (X, I, O) in bf16, as products of rows take it; one expert is in work at a time."""
    experts, outputs, groups, half = blocks_XOGb.shape
    values_XIO = torch.empty(experts, groups * half * 2, outputs, dtype=torch.bfloat16)
    for values_IO, blocks_OGb, scales_OG in zip(values_XIO, blocks_XOGb, scales_XOG, strict=True):
        values_IO.copy_(_dequantise_matrix(blocks_OGb, scales_OG).t())
    return values_XIO


def _dequantise_matrix(blocks_OGb: Tensor, scales_OG: Tensor) -> Tensor:
    """(O, G, 16), (O, G) -> (O, I)."""
    values_OGb2 = _pairs()[blocks_OGb.int()]
    exponents_OG11 = (scales_OG.int() - BIAS)[..., None, None]
    return torch.ldexp(values_OGb2, exponents_OG11, out=values_OGb2).flatten(1)


def _pairs() -> Tensor:
    """(256, 2): both values of each byte."""
    values_16 = torch.tensor([*POSITIVE, *(-value for value in POSITIVE)], dtype=torch.bfloat16)
    return torch.stack([values_16.repeat(16), values_16.repeat_interleave(16)], -1)
