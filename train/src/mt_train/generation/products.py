"""The product of few rows with a large weight on a CPU, in blocks of the weight's rows.

MKL's product of a few rows with a large weight takes up to twice as long as one batched product over blocks of that weight, which adds up
in the same order: the bits are the same (tests hold it), so that no text changes. No weight is copied. The figures are in docs/log.md,
"mt-serve beside transformers serve".

Shapes: B rows, D width, V rows of the weight (the vocabulary, for a head).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mt_core.nn.loss import is_plain_linear

BLOCK = 128
"""Rows of the weight that are multiplied together; they have to divide V."""
LEAST_WEIGHTS = 2**22
"""Numbers of a head's weight: a smaller one is in the cache, where the plain product is as fast."""
LEAST_WEIGHTS_OF_LAYER = {("AVX512", 1): 2**19, ("AVX512", 2): 2**22}
"""Instructions and threads → least numbers of a layer's weight for which blocks are faster; with AVX2 none are."""
ROWS = {"AVX2": range(2, 65), "AVX512": range(4, 16)}
"""Best instructions of a processor, as torch names them → numbers of rows for which blocks were measured to be faster, with the same bits.
With AVX2 the product of more rows is bound by its operations; with AVX-512 MKL takes another one from 16 rows on, which is faster than
blocks and adds up otherwise."""


def is_product_faster_in_blocks(head: nn.Module, hidden_BD: Tensor) -> bool:
    """Return whether the product is faster in blocks, by what was measured: in fp32, for ``ROWS`` of this processor.

    Only of a plain layer without a bias or hooks (ZeRO 3 gathers weights by hooks).
    """
    if not isinstance(head, nn.Linear) or head._forward_pre_hooks or head._forward_hooks:
        return False
    is_fp32 = hidden_BD.dtype == torch.float32 and _is_divisible(head, LEAST_WEIGHTS)
    return is_fp32 and len(hidden_BD) in ROWS.get(torch.backends.cpu.get_cpu_capability(), ())


def multiply_in_blocks(hidden_BD: Tensor, weight_VD: Tensor) -> Tensor:
    """(B, D), (V, D) -> (B, V)."""
    blocks = weight_VD.view(-1, BLOCK, weight_VD.shape[1])
    return torch.bmm(hidden_BD.expand(len(blocks), -1, -1), blocks.mT).transpose(0, 1).reshape(len(hidden_BD), -1)


@contextlib.contextmanager
def layers_in_blocks(model: nn.Module, ids_BT: Tensor) -> Iterator[None]:
    """Inside, large plain linear layers of the model multiply in blocks, where that was measured to be faster for so many tokens.

    Each of them gets a ``forward`` of its own, which is gone afterwards.
    """
    instructions, rows = torch.backends.cpu.get_cpu_capability(), ids_BT.numel()
    least = LEAST_WEIGHTS_OF_LAYER.get((instructions, torch.get_num_threads()))
    elsewhere = ids_BT.device.type != "cpu" or torch.is_grad_enabled()
    if elsewhere or least is None or rows not in ROWS[instructions]:
        yield
        return
    layers = [each for each in model.modules() if isinstance(each, nn.Linear) and _is_divisible(each, least)]
    layers = [layer for layer in layers if "forward" not in layer.__dict__]
    try:
        for layer in layers:
            layer.__dict__["forward"] = functools.partial(_forward_in_blocks, layer, rows)
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _forward_in_blocks(layer: nn.Linear, rows: int, hidden: Tensor) -> Tensor:
    """(…, D) -> (…, V); an expert that gets other rows than the whole model, or rows in another precision, multiplies as before."""
    width = layer.weight.shape[1]
    if hidden.dtype != torch.float32 or hidden.numel() != rows * width:
        return nn.functional.linear(hidden, layer.weight)
    return multiply_in_blocks(hidden.reshape(rows, width), layer.weight).view(*hidden.shape[:-1], -1)


def _is_divisible(layer: nn.Linear, least: int) -> bool:
    """Return whether a layer is a plain weight of whole blocks, in fp32 on the CPU, with at least so many numbers."""
    weight = layer.weight
    is_fp32 = weight.dtype == torch.float32 and weight.device.type == "cpu"
    return is_fp32 and is_plain_linear(layer) and weight.numel() >= least and len(weight) % BLOCK == 0
