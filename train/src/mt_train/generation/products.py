"""The product of few rows with a large weight on a CPU, in blocks of the weight's rows.

MKL's product of a few rows with the weight of a head takes up to twice as long as one batched product over blocks of that weight, which
adds up in the same order: the bits are the same (a test holds it), so that no text changes. No weight is copied. The figures are in
docs/log.md, "mt-serve beside transformers serve".

Shapes: B rows, D width, V rows of the weight (the vocabulary).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mt_core.nn.loss import is_plain_linear

BLOCK = 128
"""Rows of the weight that are multiplied together; they have to divide V."""
LEAST_WEIGHTS = 2**22
"""Numbers of a weight: a smaller one is in the cache, where the plain product is as fast."""
ROWS = {"AVX2": range(2, 65), "AVX512": range(4, 16)}
"""Best instructions of a processor, as torch names them → numbers of rows for which blocks were measured to be faster, with the same bits.
With AVX2 the product of more rows is bound by its operations; with AVX-512 MKL takes another one from 16 rows on, which is faster than
blocks and adds up otherwise."""


def is_product_faster_in_blocks(head: nn.Module, hidden_BD: Tensor) -> bool:
    """Return whether the product is faster in blocks, by what was measured: in fp32, for ``ROWS`` of this processor.

    Only of a plain layer without a bias or hooks (ZeRO 3 gathers weights by hooks).
    """
    if not isinstance(head, nn.Linear) or not is_plain_linear(head) or head._forward_pre_hooks or head._forward_hooks:
        return False
    weight = head.weight
    is_fp32 = weight.dtype == hidden_BD.dtype == torch.float32 and weight.device.type == "cpu"
    is_large = weight.numel() >= LEAST_WEIGHTS and len(weight) % BLOCK == 0
    return is_fp32 and is_large and len(hidden_BD) in ROWS.get(torch.backends.cpu.get_cpu_capability(), ())


def multiply_in_blocks(hidden_BD: Tensor, weight_VD: Tensor) -> Tensor:
    """(B, D), (V, D) -> (B, V)."""
    blocks = weight_VD.view(-1, BLOCK, weight_VD.shape[1])
    return torch.bmm(hidden_BD.expand(len(blocks), -1, -1), blocks.mT).transpose(0, 1).reshape(len(hidden_BD), -1)
