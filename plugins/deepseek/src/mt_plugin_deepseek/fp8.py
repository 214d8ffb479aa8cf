"""DeepSeek V3's fp8, as plain tensors: E4M3 values, and a factor for each block of 128 × 128.

Source: https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py, ``weight_dequant``.

Shapes: F outputs, E inputs, f and e blocks of 128 of them, the last of which may be cut short.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128
"""Rows and columns of a block."""


def dequantise(weight_FE: Tensor, scales_fe: Tensor) -> Tensor:
    """(F, E) in fp8, (f, e) in fp32 -> (F, E) in bf16; multiplied in fp32."""
    outputs, inputs = weight_FE.shape
    scales_FE = scales_fe.repeat_interleave(BLOCK, 0)[:outputs].repeat_interleave(BLOCK, 1)[:, :inputs]
    return (weight_FE.float() * scales_FE).to(torch.bfloat16)
