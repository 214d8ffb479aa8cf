"""W x + (alpha / r) · B Λ A x with r ranks so far and room for more. Shapes: E inputs, F outputs, R ranks there is room for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LowRankLinear
from mt_core.nn import StepSums, exclude_from_compile, low_rank

RESERVED = 1e-5
"""λ of a rank in reserve: its a and b learn, and it adds nothing yet."""
FIRST_DEVIATION = 0.02


class IncreLoraLinear(LowRankLinear):
    """``lora_A`` is (R, E), ``lora_B`` (F, R), ``lora_E`` the λ, (R).

    ``rank_mask`` is 1 for the ranks that it has, which come first, then those in reserve, then room. The running means are kept as
    their square roots: half precision has no place for such small numbers.
    """

    trained = ("lora_A", "lora_B", "lora_E")

    def __init__(
        self, base: nn.Module, *, first: int, room: int, reserve: int, alpha: float, root: bool, **options: Any
    ) -> None:
        super().__init__(base, scale=1.0, **options)
        self.first, self.room, self.reserve, self.alpha, self.root = first, room, reserve, alpha, root
        self.lora_A, self.lora_B, self.lora_E = (
            self.new_parameter(room, self.in_features),
            self.new_parameter(self.out_features, room),
            self.new_parameter(room),
        )
        self.rank_mask, self.importance, self.uncertainty = (
            self.new_parameter(room),
            self.new_parameter(1),
            self.new_parameter(1),
        )
        self.watched = True
        self.gathered: Tensor | None = None
        """The gradient of ΔW in the step that is being made, (F, E), in fp32."""
        self.sums: StepSums | None = None
        """Sums of the model, where there is one: they tell whether a step is being made."""

    def initialise(self, generator: Generator) -> None:
        """A and B normal, λ zero, nothing known, ``first`` ranks."""
        for parameter in (self.lora_A, self.lora_B):
            parameter.data.copy_(torch.empty(parameter.shape).normal_(0, FIRST_DEVIATION, generator=generator))
        self.importance.data.zero_()
        self.uncertainty.data.zero_()
        self.rank_mask.data.copy_(torch.arange(self.room) < self.first)
        self.lora_E.data.copy_(self.reserved_scales(self.first))

    def reserved_scales(self, count: int) -> Tensor:
        """λ of the ranks beyond the first ``count``, (R), 0 before them."""
        place = torch.arange(self.room)
        return RESERVED * ((place >= count) & (place < count + self.reserve)).float()

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Λ A, with the scale, and B. The λ of ranks that it has not yet learn nothing."""
        mask, values = self.rank_mask.float(), self.lora_E.float()
        factor = (mask * values + (1 - mask) * values.detach()) * self.scale_of(mask)
        return (factor[:, None] * self.lora_A.float()).to(dtype), self.lora_B.to(dtype)

    def scale_of(self, mask_R: Tensor) -> Tensor:
        """alpha / r, or alpha / √r."""
        count = mask_R.sum()
        return self.alpha / (count.sqrt() if self.root else count)

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F). In one way, watched or not: a resumed run is watched again until its first update."""
        inputs, out = x if self.dropout is None else self.dropout(x), self.base_output(x)
        dtype = torch.float32 if self.fp32 else out.dtype
        added = low_rank(inputs.to(dtype), *self.pair(dtype), 1.0)
        if self.watched and self.training and torch.is_grad_enabled():
            added = _watch(added, inputs, self)
        return out + added.to(out.dtype)

    def gather(self, gradient: Tensor, inputs: Tensor) -> None:
        """Add what a micro-batch says of the gradient of ΔW; not where a step is computed again, which the next one would count."""
        if self.sums is not None and not self.sums.collects:
            return
        found_FE = (gradient.flatten(0, -2).mT @ inputs.flatten(0, -2).to(gradient.dtype)).float()
        self.gathered = found_FE if self.gathered is None else self.gathered.add_(found_FE)

    def sensitivity(self, gradient_FE: Tensor, a_RE: Tensor, b_FR: Tensor, value_R: Tensor, mask_R: Tensor) -> Tensor:
        """S, (1), of the present weights in fp32."""
        delta_FE = b_FR @ ((value_R * self.scale_of(mask_R))[:, None] * a_RE)
        return delta_FE.mul_(gradient_FE).abs_().sum().div_(delta_FE.numel() ** 0.5).reshape(1)


@exclude_from_compile
def _watch(added: Tensor, inputs: Tensor, layer: IncreLoraLinear) -> Tensor:
    """``added_output``; in the backward ``layer`` gathers. What is saved is saved as autograd does, so that recomputation works."""
    return _Watch.apply(added, inputs, layer)  # type: ignore[no-untyped-call, no-any-return]


class _Watch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, added: Tensor, inputs: Tensor, layer: IncreLoraLinear) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.layer = layer
        return added.view_as(added)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.layer.gather(gradient, *ctx.saved_tensors)
        return gradient, None, None
