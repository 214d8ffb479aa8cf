"""Linear layers whose products are made in fp8, under weights that stay in bf16.

Both factors of a product are scaled by their largest number, rounded to fp8 and multiplied by ``torch._scaled_mm``, which adds up in
fp32: weights and inputs in E4M3, gradients in E5M2 (https://arxiv.org/abs/2209.05433, and the "tensorwise" recipe of torchao's
float8 training). Scales are computed at each call, so that nothing is saved, and checkpoints, ZeRO, adapters and exports see the
weights as they are. An evaluation multiplies in bf16, as whoever uses the weights will.

Shapes: E inputs, F outputs, N rows, with any dimensions before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mt_core.errors import UsageError
from mt_core.nn import StoredLinear, TrainModel

MULTIPLE = 16
"""Sizes of a product are multiples of it: those of a weight as they are, rows by zeros."""
FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
OLDEST_GPU = (8, 9)
"""Compute capability of the first GPUs with units for fp8 (Ada)."""


class Fp8Linear(StoredLinear):
    """Stands for an ``nn.Linear``, whose parameters it has under their own names."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F), in the dtype of the input."""
        if not self.training:
            return functional.linear(x, self.weight, self.bias)
        out: Tensor = _Fp8Product.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias

    def dense_weight(self) -> Tensor:
        """See ``StoredLinear``."""
        return self.weight.detach().to(torch.float32, copy=True)

    @torch.no_grad()
    def put_dense_weight(self, weight_FE: Tensor) -> None:
        """See ``StoredLinear``."""
        self.weight.copy_(weight_FE)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def multiply_in_fp8(model: TrainModel, *, least: int, device: torch.device) -> list[str]:
    """Put ``Fp8Linear`` in the place of the linear layers of all blocks whose weight has ``least`` numbers or more; returns their names.

    Embedding, head, routers, and sizes that are no multiples of 16 stay as they are. A CPU multiplies, too, for trying it out. Raises
    ``UsageError`` on a GPU without units for fp8, and where nothing is left.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST_GPU:
        raise UsageError(
            f"train.matmul=fp8 needs a GPU of compute capability {'.'.join(map(str, OLDEST_GPU))} or more (Ada, Hopper, …), and"
            f" {torch.cuda.get_device_name(device)} has {'.'.join(map(str, torch.cuda.get_device_capability(device)))}; leave it out"
        )
    found = [(name, layer) for name, layer in _layers_of_blocks(model) if _fits(layer, least)]
    for name, layer in found:
        model.set_submodule(name, Fp8Linear(layer))
    if not found:
        raise UsageError(
            f"train.matmul=fp8 finds no linear layer in the blocks of {type(model).__name__} with at least {least:,} weights and sizes"
            f" that are multiples of {MULTIPLE}; lower train.fp8_min_size, or leave out train.matmul"
        )
    return [name for name, _ in found]


def describe_fp8(names: list[str]) -> str:
    """Describe for the console which layers multiply in fp8."""
    kinds = sorted({name.rpartition(".")[2] for name in names})
    return f"fp8        {len(names)} linear layers: {', '.join(kinds)}"


def _layers_of_blocks(model: TrainModel) -> Iterator[tuple[str, nn.Linear]]:
    for layer in model.layers()[1:-2]:
        for name, module in layer.module.named_modules(prefix=layer.prefix):
            if type(module) is nn.Linear and name.rpartition(".")[2] not in model.routers:
                yield name, module


def _fits(layer: nn.Linear, least: int) -> bool:
    rows, columns = layer.out_features, layer.in_features
    return rows * columns >= least and rows % MULTIPLE == columns % MULTIPLE == 0


class _Fp8Product(torch.autograd.Function):
    """``x W^T``. It keeps the weight, and where that is trained the input in fp8: a byte for each number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_FE: Tensor) -> Tensor:
        x8_NE, x_scale = _round(_padded(x.reshape(-1, x.shape[-1])), FORWARD)
        w8_FE, w_scale = _round(weight_FE, FORWARD)
        out_NF = _multiply(x8_NE, x_scale, w8_FE.t(), w_scale, x.dtype, fast=True)
        kept = (x8_NE, x_scale) if ctx.needs_input_grad[1] else (None, None)
        ctx.save_for_backward(weight_FE, w_scale, *kept)
        ctx.shape = x.shape
        rows = x.shape[:-1].numel()
        out_NF = out_NF if len(out_NF) == rows else out_NF[:rows].clone()
        # no view of it: autograd refuses to change one in place, as an adapter does that adds to it
        return torch.ops.aten._unsafe_view(out_NF, (*x.shape[:-1], out_NF.shape[-1]))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        weight_FE, w_scale, x8_NE, x_scale = ctx.saved_tensors
        g8_NF, g_scale = _round(_padded(grad.reshape(-1, grad.shape[-1])), BACKWARD)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            w8_EF = _cast(weight_FE.t().contiguous(), w_scale, FORWARD)
            grad_x = _multiply(g8_NF, g_scale, w8_EF.t(), w_scale, grad.dtype, fast=False)
            grad_x = grad_x[: ctx.shape[:-1].numel()].reshape(ctx.shape)
        if ctx.needs_input_grad[1]:
            x8_EN = x8_NE.t().contiguous()
            grad_weight = _multiply(g8_NF.t().contiguous(), g_scale, x8_EN.t(), x_scale, weight_FE.dtype, fast=False)
        return grad_x, grad_weight


def _round(value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a matrix in fp8, and the number by which what it says is multiplied (fp32)."""
    largest = value.abs().amax().float().clamp(min=torch.finfo(torch.float32).tiny * 2.0**20)
    scale = largest / torch.finfo(dtype).max
    return _cast(value, scale, dtype), scale


def _cast(value: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max
    return (value.float() / scale).clamp(-most, most).to(dtype)


def _padded(rows_NE: Tensor) -> Tensor:
    """Return the rows with zeros behind them, as many as a product needs."""
    missing = -rows_NE.shape[0] % MULTIPLE
    return functional.pad(rows_NE, (0, 0, 0, missing)) if missing else rows_NE


def _multiply(
    one: Tensor, one_scale: Tensor, other: Tensor, other_scale: Tensor, dtype: torch.dtype, *, fast: bool
) -> Tensor:
    """Multiply a matrix by one whose columns are contiguous. ``fast`` adds up in fewer bits on GPUs of Hopper's kind.

    A CPU multiplies the same numbers in fp32: its ``_scaled_mm`` takes a hundred times as long.
    """
    if not one.is_cuda:
        return ((one.float() @ other.float()) * (one_scale * other_scale)).to(dtype)
    return torch._scaled_mm(one, other, scale_a=one_scale, scale_b=other_scale, out_dtype=dtype, use_fast_accum=fast)
