"""Attention sinks by flash kernels that have none, from the log-sum-exp that they return.

A sink s is a score more in a row's softmax, without a value (https://arxiv.org/abs/2309.17453). With the output o of a kernel
and the log-sum-exp l of its scores, l' = log(exp l + exp s) and the output is o' = o · exp(l - l'). A flash kernel's backward
makes its weights from l and the row sums of its gradient from o, so given l' and o' it returns the gradients of queries, keys
and values as they are with the sink; that of s is -Σ exp(s - l') · (g · o').

Shapes: B rows, T query tokens, S key tokens, N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class LseKernel(Protocol):
    """A flash kernel: its output and log-sum-exp, which has the output's shape without the width; and its backward."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]: ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]: ...


def attend_with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, kernel: LseKernel) -> Tensor:
    """Run a kernel as if it had sinks, whose shape fits the last dimensions of the log-sum-exp."""
    return _WithSinks.apply(q, k, v, sinks, kernel)  # type: ignore[no-untyped-call, no-any-return]


class _WithSinks(torch.autograd.Function):
    """A flash kernel with sinks; it keeps for the backward what the kernel keeps, and the sinks."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, kernel: LseKernel) -> Tensor:
        out, lse = kernel.forward(q, k, v)
        sums = torch.logaddexp(lse, sinks.to(lse.dtype))
        out = out * (lse - sums).exp()[..., None].to(out.dtype)
        ctx.save_for_backward(q, k, v, sinks, out, sums)
        ctx.kernel = kernel
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, sums = ctx.saved_tensors
        shares = (sinks.to(sums.dtype) - sums).exp()
        grad_sinks = -(shares * (grad * out).sum(-1, dtype=sums.dtype)).sum_to_size(sinks.shape).to(sinks.dtype)
        return *ctx.kernel.backward(grad, q, k, v, out, sums), grad_sinks, None


class CpuFlash:
    """The kernel by which torch attends on CPUs, (B, N, T, H) and (B, K, S, H); its public function gives no log-sum-exp.

    ``mask`` is (B, 1, T, S), true where a query may look.
    """

    def __init__(self, *, mask: Tensor | None, is_causal: bool, scale: float | None) -> None:
        self._mask, self._is_causal, self._scale = mask, is_causal, scale

    @staticmethod
    def is_installed() -> bool:
        """Return whether this torch has the kernel; without it attention goes block by block."""
        return hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward")

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and (B, N, T)."""
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = kernel(q, k, v, 0.0, self._is_causal, attn_mask=self._bias(q), scale=self._scale)
        return out, lse

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and values."""
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads: tuple[Tensor, Tensor, Tensor] = kernel(
            grad, q, k, v, out, lse, 0.0, self._is_causal, attn_mask=self._bias(q), scale=self._scale
        )
        return grads

    def _bias(self, q: Tensor) -> Tensor | None:
        """Return the mask as numbers that are added to scores: the public function would take truths, the kernel does not."""
        if self._mask is None:
            return None
        return torch.zeros_like(self._mask, dtype=q.dtype).masked_fill_(~self._mask, -torch.inf)
