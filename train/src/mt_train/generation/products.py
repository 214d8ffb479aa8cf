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
from contextlib import AbstractContextManager

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


def multiply_in_blocks(hidden_BD: Tensor, weight_VD: Tensor) -> Tensor:
    """(B, D), (V, D) -> (B, V)."""
    blocks = weight_VD.view(-1, BLOCK, weight_VD.shape[1])
    return torch.bmm(hidden_BD.expand(len(blocks), -1, -1), blocks.mT).transpose(0, 1).reshape(len(hidden_BD), -1)


def head_in_blocks(head: nn.Module, hidden_BD: Tensor) -> AbstractContextManager[None]:
    """Inside, a large plain head multiplies these rows in blocks, where that was measured to be faster."""
    return _in_blocks(head, len(hidden_BD), hidden_BD.device, LEAST_WEIGHTS)


def layers_in_blocks(model: nn.Module, ids_BT: Tensor) -> AbstractContextManager[None]:
    """Inside, large plain linear layers of the model multiply in blocks, where that was measured to be faster for so many tokens."""
    least = LEAST_WEIGHTS_OF_LAYER.get((torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()))
    return _in_blocks(model, ids_BT.numel(), ids_BT.device, least)


@contextlib.contextmanager
def _in_blocks(module: nn.Module, rows: int, device: torch.device, least: int | None) -> Iterator[None]:
    """Give each plain linear layer of at least so many numbers a ``forward`` of its own, which is gone afterwards; hooks run as ever."""
    measured = ROWS.get(torch.backends.cpu.get_cpu_capability(), ())
    if least is None or device.type != "cpu" or rows not in measured or torch.is_grad_enabled():
        yield
        return
    layers = [each for each in module.modules() if isinstance(each, nn.Linear) and _is_divisible(each, least)]
    layers = [layer for layer in layers if "forward" not in layer.__dict__]
    try:
        for layer in layers:
            layer.__dict__["forward"] = functools.partial(_forward_in_blocks, layer, rows)
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)  # another thread's forward may have taken it away


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
