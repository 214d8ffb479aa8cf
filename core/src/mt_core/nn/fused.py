"""Operations whose plain form keeps more for the backward than it needs. Chosen on measurements in docs/log.md.

Each has the value and the gradient of its plain form (tests/core/nn/test_fused.py).

Shapes: B rows, T tokens, D model width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root-mean-square norm (https://arxiv.org/abs/1910.07467), computed in fp32, scaled in the dtype of the input.

    ``centred``: the weight is what the scale has beyond 1, begins at 0, and scales in fp32
    (https://github.com/huggingface/transformers/pull/29402). ``rounds_last``: a weight that begins at 1 scales in fp32 too, as
    those of OLMo 2 and gpt-oss do.

    It keeps its input and one number a token for the backward. Its gradient reaches the input in one piece, so that
    ZeRO 3, whose hooks change the order in which autograd adds up pieces, gives the same bits as the other stages.
    """

    def __init__(self, width: int, *, eps: float = 1e-6, centred: bool = False, rounds_last: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if centred else torch.ones(width))
        self.eps = eps
        self.centred, self.rounds_last = centred, rounds_last

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D), in the dtype of the input."""
        return apply_function(_RMSNorm, x_BTD, self.weight, self.eps, self.centred, self.rounds_last)

    def extra_repr(self) -> str:
        return f"eps={self.eps}"


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, weight_D: Tensor, eps: float, centred: bool, rounds_last: bool) -> Tensor:
        ctx.by_kernel = not centred and _has_kernel(x_BTD, weight_D)
        if ctx.by_kernel:
            inner_D = weight_D if rounds_last else None
            out_BTD, scale_BT1 = torch.ops.aten._fused_rms_norm(x_BTD, weight_D.shape, inner_D, eps)
            ctx.save_for_backward(x_BTD, weight_D, scale_BT1)
            return out_BTD if rounds_last else out_BTD.mul_(weight_D)  # type: ignore[no-any-return]
        x32_BTD = x_BTD.float()
        scale_BT1 = x32_BTD.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x_BTD, weight_D, scale_BT1)
        ctx.centred = centred
        if centred:
            return _cast(_multiply(x32_BTD * scale_BT1, 1 + weight_D.float()), x_BTD.dtype)
        if rounds_last:
            return _cast(_multiply(x32_BTD * scale_BT1, weight_D), x_BTD.dtype)
        return (x32_BTD * scale_BT1).to(x_BTD.dtype) * weight_D

    @staticmethod
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x_BTD, weight_D, scale_BT1 = ctx.saved_tensors
        if ctx.by_kernel:
            given = grad_BTD.contiguous(), x_BTD, weight_D.shape, scale_BT1, weight_D
            grads = torch.ops.aten._fused_rms_norm_backward(*given, list(ctx.needs_input_grad[:2]))
            return *grads, None, None, None
        normed_BTD = x_BTD.float() * scale_BT1
        grad32_BTD = grad_BTD.float()
        grad_weight_D = None
        if ctx.needs_input_grad[1]:
            grad_weight_D = (grad32_BTD * normed_BTD).flatten(0, -2).sum(0).to(weight_D.dtype)
        scaled_BTD = grad32_BTD * (weight_D.float() + 1 if ctx.centred else weight_D.float())
        mean_BT1 = (scaled_BTD * normed_BTD).mean(-1, keepdim=True)
        grad_x_BTD = scaled_BTD.sub_(normed_BTD.mul_(mean_BT1)).mul_(scale_BT1)
        return grad_x_BTD.to(x_BTD.dtype), grad_weight_D, None, None, None


def _has_kernel(x_BTD: Tensor, weight_D: Tensor) -> bool:
    """Return whether torch has a kernel for it: on a GPU, from torch 2.9 on. A compiler writes its own."""
    if not x_BTD.is_cuda or x_BTD.dtype != weight_D.dtype or torch.compiler.is_compiling():
        return False
    return x_BTD.is_contiguous() and hasattr(torch.ops.aten, "_fused_rms_norm_backward")


def swiglu(gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    """``silu(gate) * up`` (https://arxiv.org/abs/2002.05202), which keeps its two inputs only."""
    return apply_function(_Gated, gate_BTF, up_BTF, False)


def geglu(gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    """``gelu(gate) * up`` with the tanh form of GELU (https://arxiv.org/abs/2002.05202), which keeps its two inputs only."""
    return apply_function(_Gated, gate_BTF, up_BTF, True)


def project_gated(
    down: nn.Module, gate_BTF: Tensor, up_BTF: Tensor, activation: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """``down(activation(gate, up))``, (B, T, F) -> (B, T, D), in the same bits, forward and backward.

    Behind ``swiglu`` and ``geglu`` a trained linear layer keeps gate and up alone: what it multiplies is made again in the backward.
    A layer with hooks (ZeRO 3's gather its weight), a layer of another kind and a compiled model run as they are.
    """
    if activation not in (swiglu, geglu) or not _keeps_inputs(down):
        return down(activation(gate_BTF, up_BTF))  # type: ignore[no-any-return]
    return apply_function(_ProjectGated, gate_BTF, up_BTF, down.weight, down.bias, activation is geglu)


def _keeps_inputs(layer: nn.Module) -> bool:
    """Return whether a layer is a plain product that keeps for its weight's gradient what it multiplies."""
    own = getattr(layer.forward, "__func__", None)
    if torch.compiler.is_compiling() or own is not nn.Linear.forward or has_hooks(layer):
        return False
    return torch.is_grad_enabled() and bool(layer.weight.requires_grad)


def has_hooks(module: nn.Module) -> bool:
    """Return whether calls of a module run hooks, so that a function may not take the place of the call."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks)


class _ProjectGated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gate_BTF: Tensor, up_BTF: Tensor, weight_DF: Tensor, bias_D: Tensor | None, has_gelu: bool
    ) -> Tensor:
        ctx.save_for_backward(gate_BTF, up_BTF, weight_DF)
        ctx.has_gelu = has_gelu
        return nn.functional.linear(_multiply(_activate(gate_BTF, has_gelu), up_BTF), weight_DF, bias_D)

    @staticmethod
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor | None, ...]:
        gate_BTF, up_BTF, weight_DF = ctx.saved_tensors
        of_gate, of_up, of_weight, of_bias, _ = ctx.needs_input_grad
        grad_ND = grad_BTD.reshape(-1, grad_BTD.shape[-1])
        grad_weight_DF = None
        if of_weight:
            hidden_BTF = _activate(gate_BTF, ctx.has_gelu).mul_(up_BTF)
            grad_weight_DF = grad_ND.mT @ hidden_BTF.flatten(0, -2)
            del hidden_BTF
        grad_gate_BTF = grad_up_BTF = None
        if of_gate or of_up:
            grad_BTF = (grad_ND @ weight_DF).view_as(gate_BTF)
            grad_gate_BTF, grad_up_BTF = _gated_backward(grad_BTF, gate_BTF, up_BTF, ctx.has_gelu)
        return grad_gate_BTF, grad_up_BTF, grad_weight_DF, grad_ND.sum(0) if of_bias else None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_BTF: Tensor, up_BTF: Tensor, has_gelu: bool) -> Tensor:
        ctx.save_for_backward(gate_BTF, up_BTF)
        ctx.has_gelu = has_gelu
        return _multiply(_activate(gate_BTF, has_gelu), up_BTF)

    @staticmethod
    def backward(ctx: Any, grad_BTF: Tensor) -> tuple[Tensor, Tensor, None]:
        gate_BTF, up_BTF = ctx.saved_tensors
        return *_gated_backward(grad_BTF, gate_BTF, up_BTF, ctx.has_gelu), None


def _gated_backward(grad_BTF: Tensor, gate_BTF: Tensor, up_BTF: Tensor, has_gelu: bool) -> tuple[Tensor, Tensor]:
    grad_up_BTF = _activate(gate_BTF, has_gelu).mul_(grad_BTF)
    if has_gelu:
        return torch.ops.aten.gelu_backward(grad_BTF * up_BTF, gate_BTF, approximate="tanh"), grad_up_BTF
    return torch.ops.aten.silu_backward(grad_BTF * up_BTF, gate_BTF), grad_up_BTF


def _activate(gate_BTF: Tensor, has_gelu: bool) -> Tensor:
    return nn.functional.gelu(gate_BTF, approximate="tanh") if has_gelu else nn.functional.silu(gate_BTF)


# The compiler of torch 2.11 passes no gradient to a Function whose output shares its memory with what was computed before: by an operator
# in place, or by a cast that casts nothing.


def _multiply(own: Tensor, other: Tensor) -> Tensor:
    return own * other if torch.compiler.is_compiling() else own.mul_(other)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


def apply_function(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Call a ``Function``. Without gradients its forward runs alone: ``apply`` takes as long as two operators on few tokens."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function.apply(*inputs)  # type: ignore[no-untyped-call, no-any-return]
    return function.forward(SimpleNamespace(save_for_backward=lambda *_: None), *inputs)  # type: ignore[no-any-return]
