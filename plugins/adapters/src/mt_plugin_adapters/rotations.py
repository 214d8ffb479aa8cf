"""Orthogonal matrices from free numbers. Shapes: M rows, N blocks, K x K each."""

from __future__ import annotations

import torch
from torch import Tensor


def cayley(skew_NKK: Tensor) -> Tensor:
    """(I - Q)(I + Q)⁻¹ of skew-symmetric Q: orthogonal, and I where Q is 0. In fp32, whatever Q is in."""
    skew_NKK = skew_NKK.float()
    unit_KK = torch.eye(skew_NKK.shape[-1], device=skew_NKK.device)
    found_NKK: Tensor = torch.linalg.solve(unit_KK + skew_NKK, unit_KK - skew_NKK, left=False)
    return found_NKK


def cayley_neumann(skew_NKK: Tensor, terms: int) -> Tensor:
    """Return the first terms of the Cayley transform: I + 2 Q + … + 2 Qᵗ⁻² + Qᵗ⁻¹ (with peft's sign of Q, the other one). In fp32."""
    power_NKK = skew_NKK = skew_NKK.float()
    found_NKK = torch.eye(skew_NKK.shape[-1], device=skew_NKK.device) + 2 * skew_NKK
    for exponent in range(2, terms):
        power_NKK = power_NKK @ skew_NKK
        found_NKK = found_NKK + (2 if exponent < terms - 1 else 1) * power_NKK
    return found_NKK


def block_product(x: Tensor, blocks_NKK: Tensor) -> Tensor:
    """Rows times a block-diagonal matrix, (…, N·K) -> (…, N·K), in the dtype of ``x``; one block stands for all."""
    size = blocks_NKK.shape[-1]
    x_MNK, blocks_NKK = x.reshape(-1, x.shape[-1] // size, size), blocks_NKK.to(x.dtype)
    if len(blocks_NKK) == 1:
        return (x_MNK @ blocks_NKK[0]).reshape(x.shape)
    # one product a block: broadcast over rows, matmul would copy the blocks for each of them
    return torch.bmm(x_MNK.transpose(0, 1), blocks_NKK).transpose(0, 1).reshape(x.shape)
