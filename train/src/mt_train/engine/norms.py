"""Norms of the gradient that are the same on every layout, put in the place of DeepSpeed's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mt_train.engine.processes import all_reduce

SQUARED_AT_ONCE = 1 << 20
"""Numbers of a CPU whose squares are added up in one call: torch makes a copy in fp64 of them."""


def squared_norm(gradients: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return the square of the norm of all gradients, a number in fp64 on the device; 0 of none.

    A GPU takes them in few kernels and copies none. A CPU squares them piece by piece.
    """
    given = list(gradients)
    if not given:
        return torch.zeros((), dtype=torch.float64, device=device)
    if all(map(_has_kernel, given)):
        norms = torch._foreach_norm(given, 2, torch.float64)
    else:
        pieces = (piece for gradient in given for piece in torch.split(gradient, SQUARED_AT_ONCE))
        norms = tuple(torch.linalg.vector_norm(piece, dtype=torch.float64) for piece in pieces)
    return torch.stack(norms).square().sum().to(device)


def _has_kernel(gradient: Tensor) -> bool:
    """Return whether torch has a kernel that reads the gradient's type and adds up in fp64."""
    return gradient.is_cuda


def settle_norm(optimizer: Any) -> None:
    """Clip by one norm at every ZeRO stage: summed in fp64, rounded to fp32.

    DeepSpeed's own sums differ between stages in the last bit, and so would the weights from the first clipped step on.
    """
    clip = optimizer.unscale_and_clip_grads

    def norm_of(gradients: Sequence[Tensor], params: Any, norm_type: float = 2) -> Tensor:
        return all_reduce(squared_norm(gradients, params[0].device)).sqrt()

    def clip_by(gradients: Any, norm: Any) -> None:
        clip(gradients, torch.as_tensor(norm).float())

    optimizer.get_grad_norm_direct = norm_of
    optimizer._average_expert_grad_norms = lambda norms: None  # ranks that hold the same experts have one norm already
    optimizer.unscale_and_clip_grads = clip_by


def pipeline_norm(zero: Any) -> Tensor:
    """The norm of the whole gradient, summed in fp64 over all stages at once, however many groups each has.

    A weight that several stages share has the same gradient on each, and counts once.
    """
    counted: list[Tensor] = []
    for group, parameters in enumerate(zero.params_in_partition):
        real = [each for each in zero.averaged_gradients[group] if not getattr(each, "_zero_padding", False)]
        for gradient, parameter in zip(real, parameters, strict=False):  # the last gradient may be padding too
            if not parameter.ds_pipe_replicated:
                counted.append(gradient)
    return all_reduce(squared_norm(counted, zero.device)).sqrt()


def never_empty(zero: Any) -> None:
    """DeepSpeed's optimizer for bf16 adds up the norm by itself, and fails on a stage with nothing but a shared weight."""
    gradients = zero.get_grads_for_norm

    def at_least_one(for_clipping: bool = False) -> Any:
        if for_clipping:
            return gradients(for_clipping=True)
        dense, experts = gradients()
        return dense or [torch.zeros(1, device=zero.fp32_groups_flat_partition[0].device)], experts

    zero.get_grads_for_norm = at_least_one
