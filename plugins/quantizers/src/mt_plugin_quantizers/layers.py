"""Linear layers that store their weight in four or eight bits, by bitsandbytes.

Statistics are kept as bytes, so that no cast of the model to half precision rounds them. Nothing is saved: a weight is read
and quantized again.

Shapes: E inputs, F outputs, with any dimensions before them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from bitsandbytes.functional import (
    QuantState,
    create_dynamic_map,
    dequantize_4bit,
    get_4bit_type,
    int8_vectorwise_dequant,
    int8_vectorwise_quant,
    quantize_4bit,
)
from torch import Tensor, nn
from torch.nn import functional

from mt_core import WeightsError
from mt_core.adapters import targets_of
from mt_core.nn import StoredLinear, TrainModel

from .config import FourBitConfig, QuantizerConfig

_SECOND_BLOCK = 256
"""Scales that share a scale, in bitsandbytes' double quantization."""


class Quantizer:
    """Implements ``mt_core.Quantizer``."""

    def __init__(self, config: QuantizerConfig, layer: Callable[[nn.Linear | StoredLinear], StoredLinear]) -> None:
        self._config, self._layer = config, layer

    def replace(self, model: TrainModel) -> None:
        """Put empty layers in the place of the targets."""
        for name, linear in targets_of(model, self._config, slot="quantizer").items():
            if isinstance(linear, nn.Linear | StoredLinear):
                stored = self._layer(linear)
                stored.is_transposed = getattr(linear, "is_transposed", False)
                model.set_submodule(name, stored)


class QuantizedLinear(StoredLinear):
    """Multiplies by its weight as it stands, taken out of its bits for each product and for no longer."""

    merges = False
    bits: Tensor
    scales: Tensor
    second: Tensor

    def __init__(self, linear: nn.Linear | StoredLinear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_parameter("bias", linear._parameters["bias"])

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """(F, E)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F), in the dtype of the input; the backward takes the weight out again."""
        self.follow(x.device)
        out: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias

    def follow(self, device: torch.device) -> None:
        """Move to a device: under an adapter this is no child of the model, which ``.to`` would move.

        Never to ``meta``, where its values would be gone.
        """
        if device.type != "meta" and self.bits.device != device:
            self.to(device)

    def dense_weight(self) -> Tensor:
        """See ``StoredLinear``."""
        return self.weight_in(torch.float32)


class _Product(torch.autograd.Function):
    """Keeps nothing: the gradient of a frozen weight's product needs the weight only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return functional.linear(x, layer.weight_in(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.layer.weight_in(grad.dtype), None


class FourBitLinear(QuantizedLinear):
    """Two weights a byte; a scale for each block, 8 bits with ``double``, else 32."""

    def __init__(
        self, linear: nn.Linear | StoredLinear, *, kind: Literal["nf4", "fp4"], block_size: int, double: bool
    ) -> None:
        super().__init__(linear)
        self.kind, self.block_size, self.nested = kind, block_size, double
        numbers = self.in_features * self.out_features
        blocks = -(-numbers // block_size)
        self.register_buffer("bits", torch.empty((numbers + 1) // 2, 1, dtype=torch.uint8), persistent=False)
        scales = blocks if double else 4 * blocks
        self.register_buffer("scales", torch.empty(scales, dtype=torch.uint8), persistent=False)
        second = 4 * (-(-blocks // _SECOND_BLOCK) + 1) if double else 0  # and the mean that is taken off first
        self.register_buffer("second", torch.empty(second, dtype=torch.uint8), persistent=False)

    @torch.no_grad()
    def put_dense_weight(self, weight_FE: Tensor) -> None:
        """Quantize it. The statistics are of its fp32 values."""
        weight = weight_FE.to(self.bits.device, torch.float32).contiguous()
        bits, state = quantize_4bit(
            weight, blocksize=self.block_size, quant_type=self.kind, compress_statistics=self.nested
        )
        self.bits.copy_(bits)
        if not self.nested:
            self.scales.copy_(state.absmax.view(torch.uint8))
            return
        self.scales.copy_(state.absmax)
        self.second.copy_(torch.cat([state.state2.absmax, state.offset.reshape(1)]).view(torch.uint8))

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """See ``QuantizedLinear``."""
        return dequantize_4bit(self.bits, self._state(dtype))  # type: ignore[no-any-return]

    def _state(self, dtype: torch.dtype) -> QuantState:
        common = {"shape": torch.Size((self.out_features, self.in_features)), "blocksize": self.block_size}
        common |= {"quant_type": self.kind, "dtype": dtype}
        code = get_4bit_type(self.kind, device=self.bits.device)
        if not self.nested:
            return QuantState(absmax=self.scales.view(torch.float32), code=code, **common)
        second = self.second.view(torch.float32)
        nested = QuantState(
            absmax=second[:-1],
            code=create_dynamic_map().to(self.bits.device),
            blocksize=_SECOND_BLOCK,
            dtype=torch.float32,
        )
        return QuantState(absmax=self.scales, code=code, offset=second[-1], state2=nested, **common)


class Int8Linear(QuantizedLinear):
    """A byte a weight; a scale for each output."""

    def __init__(self, linear: nn.Linear | StoredLinear) -> None:
        super().__init__(linear)
        shape = self.out_features, self.in_features
        self.register_buffer("bits", torch.empty(shape, dtype=torch.int8), persistent=False)
        self.register_buffer("scales", torch.empty(4 * self.out_features, dtype=torch.uint8), persistent=False)

    @torch.no_grad()
    def put_dense_weight(self, weight_FE: Tensor) -> None:
        """Quantize it row by row, in fp16 as bitsandbytes does. Raises ``WeightsError`` for a number that fp16 has not."""
        halves = weight_FE.to(self.bits.device, torch.float16).contiguous()
        if bool((halves.isinf() & weight_FE.to(halves.device).isfinite()).any()):
            raise WeightsError(
                f"a weight of {weight_FE.abs().max():.4g} is beyond fp16 (65,504), in which int8 is quantized: its row would be NaN; take"
                " --quantizer nf4, or leave the layer out (--quantizer.exclude)"
            )
        bits, scales, _ = int8_vectorwise_quant(halves)
        self.bits.copy_(bits)
        self.scales.copy_(scales.float().view(torch.uint8))

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """See ``QuantizedLinear``."""
        return int8_vectorwise_dequant(self.bits, self.scales.view(torch.float32)).to(dtype)  # type: ignore[no-any-return]


def four_bit(config: FourBitConfig, kind: Literal["nf4", "fp4"]) -> Quantizer:
    """NF4 or FP4."""
    return Quantizer(config, partial(FourBitLinear, kind=kind, block_size=config.block_size, double=config.double))


def int8(config: QuantizerConfig) -> Quantizer:
    """Eight bits."""
    return Quantizer(config, Int8Linear)
