"""AdamW whose bits do not depend on how the weights are cut into pieces (https://arxiv.org/abs/1711.05101).

torch's fused CPU kernel computes vectors of numbers, and what is left at the end of a tensor one by one, with other
roundings. ZeRO shows the same weights as flat pieces with other ends, so stages and ranks would differ in the last bit.
Here every number takes the vector path: the rest of a tensor is updated in a padded copy. It costs nothing where sizes
are multiples of 16, and the kernel is four times as fast as the plain operations and makes no temporary tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import AdamW, adamw

_KERNEL_BYTES = 64
"""The kernel shares out work in cache lines, and no vector is longer (FusedAdamKernel.cpp of torch)."""

_Piece = list[Tensor]
"""Weight, gradient, mean, squared mean: equally long vectors."""


class SliceInvariantAdamW(AdamW):
    """``torch.optim.AdamW``, fused, with equal bits for every way to slice the weights. Its state is that of torch."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        pieces: list[_Piece] = []
        counts: list[Tensor] = []
        copied: list[tuple[_Piece, int, _Piece]] = []
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self._state_of(parameter)
            tensors = [parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]]
            start = _aligned_length(tensors)
            if start:
                pieces.append([tensor.view(-1)[:start] for tensor in tensors])
                counts.append(state["step"].clone())
            if start < parameter.numel():
                rest = [_pad(tensor.reshape(-1)[start:]) for tensor in tensors]
                pieces.append(rest)
                counts.append(state["step"].clone())
                copied.append((tensors, start, rest))
            state["step"] += 1
        _run_kernel(pieces, counts, group)
        for tensors, start, rest in copied:
            _copy_back(tensors, start, rest)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state under torch's names; the kernel wants the step count on the device of the weight."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] = state["step"].to(parameter.device)
        return state


def _run_kernel(pieces: list[_Piece], counts: list[Tensor], group: dict[str, Any]) -> None:
    if not pieces:
        return
    weights, gradients, means, squares = (list(column) for column in zip(*pieces, strict=True))
    beta1, beta2 = group["betas"]
    adamw(
        weights,
        gradients,
        means,
        squares,
        [],
        counts,
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def _aligned_length(tensors: _Piece) -> int:
    """Return how many numbers from the start the kernel may update in place: none where memory is not in order."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        return 0
    weight = tensors[0]
    # a GPU's kernel treats all numbers alike
    unit = _KERNEL_BYTES // weight.element_size() if weight.device.type == "cpu" else 1
    return weight.numel() - weight.numel() % unit


def _pad(vector: Tensor) -> Tensor:
    """A copy with zeros up to the next multiple of the kernel's unit."""
    unit = _KERNEL_BYTES // vector.element_size()
    padded = vector.new_zeros(-(-vector.numel() // unit) * unit)
    padded[: vector.numel()] = vector
    return padded


def _copy_back(tensors: _Piece, start: int, rest: _Piece) -> None:
    for tensor, updated in zip(tensors, rest, strict=True):
        count = tensor.numel() - start
        place = tensor.view(-1)[start:] if start else tensor
        place.copy_(updated[:count].view(place.shape))
