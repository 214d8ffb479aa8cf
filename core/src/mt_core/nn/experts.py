"""Experts of a mixture, in two forms with the same values: fused tensors for full training, listed modules for adapters and quantizers.

Tokens are sorted by their experts, each expert multiplies its own, and a token's outputs are added up in fp32 in the order of its
choice, so that the result hangs neither on the other tokens nor on the device's order of additions.

Shapes: N tokens, K experts of a token, X experts, D model width, F hidden width of an expert, S = N · K rows sorted by expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mt_core.config.experts import ExpertLayout
from mt_core.nn.compilation import exclude_from_compile
from mt_core.nn.exchange import ExpertExchange
from mt_core.nn.fused import swiglu
from mt_core.nn.router import Choice

Activation = Callable[..., Tensor]
"""(gate, up) -> hidden values, all (S, F): ``swiglu``, ``geglu``, or ``partial(clamped_swiglu, …)``; without a gate (up) -> them."""


class Experts(nn.Module):
    """All experts of a layer in two tensors: ``gate_up_proj``, or ``up_proj`` without a gate, and ``down_proj``, with ``…_bias`` where
    the layout has biases."""

    gate_up_proj: nn.Parameter
    down_proj: nn.Parameter
    exchange: ExpertExchange | None = None
    """Set by the engine where ranks share the experts among them; the tensors then hold the experts of this rank."""

    def __init__(self, layout: ExpertLayout, activation: Activation = swiglu) -> None:
        super().__init__()
        self.layout, self.activation = layout, activation
        for name, shape in layout.fused_shapes().items():
            setattr(self, name, nn.Parameter(torch.empty(shape)))

    @exclude_from_compile
    def forward(self, x_ND: Tensor, choice: Choice) -> Tensor:
        """(N, D) -> (N, D), the outputs of the chosen experts times their weights, in the dtype of the input."""
        order = sort_by_expert(choice.experts_NK, self.layout.n_experts)
        rows_SD = _Dispatch.apply(x_ND, order)  # type: ignore[no-untyped-call]
        if self.exchange is None:
            out_SD = self._outputs(rows_SD, order.ends_X)
        else:
            received = self.exchange(rows_SD, order.ends_X)
            out_SD = received.back(self._outputs(received.rows_RD, received.ends_E))
        return _Combine.apply(out_SD, choice.weights_NK, order)  # type: ignore[no-untyped-call, no-any-return]

    def _outputs(self, rows_SD: Tensor, ends_X: Tensor) -> Tensor:
        inner_SE, n_parts = self._product(rows_SD, self.layout.inner, ends_X), len(self.layout.projections) - 1
        parts = (
            [inner_SE[:, at::n_parts] for at in range(n_parts)]
            if self.layout.interleaved
            else inner_SE.chunk(n_parts, -1)
        )
        return self._product(self.activation(*parts), "down_proj", ends_X)

    def _product(self, rows_SD: Tensor, name: str, ends_X: Tensor) -> Tensor:
        weight, bias = self._parameters[name], self._parameters.get(f"{name}_bias")
        assert weight is not None, f"experts without {name}"
        out = grouped_product(rows_SD, weight if self.layout.transposed else weight.mT, ends_X)
        return out if bias is None else out + bias[expert_of_rows(ends_X, len(rows_SD))]

    def make_listed(self) -> ListedExperts:
        """Make the listed form of these experts, with new parameters on the default device, whose values are arbitrary."""
        return ListedExperts(self.layout, self.activation)

    def extra_repr(self) -> str:
        return f"{self.layout.n_experts} of width {self.layout.hidden}"


class ListedExperts(nn.ModuleList):
    """Each expert as a module with linear layers under their published names, such as ``3.gate_proj``, which adapters and quantizers find.

    An expert without tokens runs on one token, of whose output no row is taken: every parameter then has a gradient on every rank, and
    ranks that gather parameters layer by layer make the same calls.
    """

    def __init__(self, layout: ExpertLayout, activation: Activation = swiglu) -> None:
        super().__init__(Expert(layout, activation) for _ in range(layout.n_experts))
        self.layout = layout

    @exclude_from_compile
    def forward(self, x_ND: Tensor, choice: Choice) -> Tensor:
        """(N, D) -> (N, D), as ``Experts``."""
        order = sort_by_expert(choice.experts_NK, self.layout.n_experts)
        rows_SD = _Dispatch.apply(x_ND, order)  # type: ignore[no-untyped-call]
        begin, parts = 0, []
        for expert, end in zip(self, order.ends_X.tolist(), strict=True):
            parts.append(expert(rows_SD[begin:end]) if end > begin else expert(x_ND[:1])[:0])
            begin = end
        return _Combine.apply(torch.cat(parts), choice.weights_NK, order)  # type: ignore[no-untyped-call, no-any-return]


class Expert(nn.Module):
    """One expert of ``ListedExperts``: an MLP, with a gate where the layout has one."""

    def __init__(self, layout: ExpertLayout, activation: Activation) -> None:
        super().__init__()
        self.names, self.activation = layout.projections, activation
        *inner, down = layout.projections
        for name in inner:
            self.add_module(name, nn.Linear(layout.width, layout.hidden, bias=layout.bias))
        self.add_module(down, nn.Linear(layout.hidden, layout.width, bias=layout.bias))

    def forward(self, x_SD: Tensor) -> Tensor:
        """(S, D) -> (S, D)."""
        *inner, down = (self.get_submodule(name) for name in self.names)
        out_SD: Tensor = down(self.activation(*(each(x_SD) for each in inner)))
        return out_SD


def list_experts(model: nn.Module) -> None:
    """Replace fused experts of a model by the listed form; values are arbitrary, as in a model that was just built."""
    for name, module in list(model.named_modules()):
        if isinstance(module, Experts):
            model.set_submodule(name, module.make_listed())


def expert_layouts(model: nn.Module) -> dict[str, ExpertLayout]:
    """Return the layouts of a model's experts, fused or listed, by the names of their modules."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, Experts | ListedExperts))
    return {name: module.layout for name, module in found}


def clamped_swiglu(gate: Tensor, up: Tensor, *, limit: float = 7.0, alpha: float = 1.702) -> Tensor:
    """``gate · sigmoid(alpha · gate) · (up + 1)`` with the gate at most ``limit``, and up within ± ``limit``: gpt-oss
    (https://arxiv.org/abs/2508.10925, section 2.2)."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


# --------------------------------------------------------------------------------------------------- rows by expert


class Order(NamedTuple):
    """Rows sorted by expert. ``places_NK`` is the row of each choice, ``choices_S`` the choice (n · K + k) of each row; the rows of
    expert x end before ``ends_X[x]``."""

    places_NK: Tensor
    choices_S: Tensor
    ends_X: Tensor


@torch.no_grad()
def sort_by_expert(experts_NK: Tensor, n_experts: int) -> Order:
    """Sort choices by expert, and by token within one. No device waits for another."""
    experts_S, choices_S = experts_NK.flatten().sort(stable=True)
    places_NK = torch.empty_like(choices_S).scatter_(
        0, choices_S, torch.arange(len(choices_S), device=choices_S.device)
    )
    every_X = torch.arange(n_experts, device=experts_S.device)
    ends_X = torch.searchsorted(experts_S, every_X, right=True, out_int32=True)
    return Order(places_NK.view_as(experts_NK), choices_S, ends_X)


def expert_of_rows(ends_X: Tensor, n_rows: int) -> Tensor:
    """Return the expert of each sorted row, (S,)."""
    return torch.searchsorted(ends_X, torch.arange(n_rows, device=ends_X.device, dtype=ends_X.dtype), right=True)


class _Dispatch(torch.autograd.Function):
    """A row for each choice, sorted by expert; gradients of a token's rows are added up in fp32 in the order of its choice."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, order: Order) -> Tensor:
        ctx.order = order
        return x_ND[order.choices_S // order.places_NK.shape[1]]

    @staticmethod
    def backward(ctx: Any, grad_SD: Tensor) -> tuple[Tensor, None]:
        return grad_SD[ctx.order.places_NK].sum(1, dtype=torch.float32).to(grad_SD.dtype), None


class _Combine(torch.autograd.Function):
    """The weighted sum of each token's rows, added up in fp32 in the order of its choice."""

    @staticmethod
    def forward(ctx: Any, out_SD: Tensor, weights_NK: Tensor, order: Order) -> Tensor:
        ctx.save_for_backward(out_SD, weights_NK)
        ctx.order = order
        total_ND = out_SD.new_zeros(len(weights_NK), out_SD.shape[1], dtype=torch.float32)
        for places_N, weights_N in zip(order.places_NK.unbind(1), weights_NK.unbind(1), strict=True):
            total_ND.addcmul_(out_SD[places_N].float(), weights_N.float()[:, None])
        return total_ND.to(out_SD.dtype)

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        out_SD, weights_NK = ctx.saved_tensors
        order: Order = ctx.order
        grad_SD = grad_ND[order.choices_S // weights_NK.shape[1]]
        grad_out_SD = grad_weights_NK = None
        if ctx.needs_input_grad[1]:
            shares_S = torch.linalg.vecdot(grad_SD.float(), out_SD.float())
            grad_weights_NK = shares_S[order.places_NK].to(weights_NK.dtype)
        if ctx.needs_input_grad[0]:
            weights_S = weights_NK.flatten()[order.choices_S].float()
            grad_out_SD = (grad_SD * weights_S[:, None]).to(out_SD.dtype)
        return grad_out_SD, grad_weights_NK, None


# --------------------------------------------------------------------------------------- a product for each expert


def grouped_product(rows_SD: Tensor, weight_XDF: Tensor, ends_X: Tensor) -> Tensor:
    """(S, D), (X, D, F) -> (S, F): the rows of each expert times its matrix, by torch's grouped product where that runs."""
    if _has_grouped_mm(rows_SD, weight_XDF):
        return functional.grouped_mm(rows_SD, weight_XDF, offs=ends_X)
    return _Looped.apply(rows_SD, weight_XDF, ends_X)  # type: ignore[no-untyped-call, no-any-return]


def _has_grouped_mm(rows_SD: Tensor, weight_XDF: Tensor) -> bool:
    """Return whether torch (from 2.10) has a grouped product here: on a CPU or compute capability 8.0, for rows of whole 16 bytes."""
    if not hasattr(functional, "grouped_mm") or rows_SD.device.type not in ("cpu", "cuda"):
        return False
    sizes = (rows_SD.shape[1], weight_XDF.shape[2])
    if any(size * rows_SD.element_size() % 16 for size in sizes):
        return False
    return rows_SD.device.type == "cpu" or torch.cuda.get_device_capability(rows_SD.device) >= (8, 0)


class _Looped(torch.autograd.Function):
    """The grouped product as one product after the other, over experts that have rows."""

    @staticmethod
    def forward(ctx: Any, rows_SD: Tensor, weight_XDF: Tensor, ends_X: Tensor) -> Tensor:
        ctx.save_for_backward(rows_SD, weight_XDF)
        ctx.spans = _spans(ends_X)
        out_SF = rows_SD.new_empty(len(rows_SD), weight_XDF.shape[2])
        for expert, rows in ctx.spans:
            torch.mm(rows_SD[rows], weight_XDF[expert], out=out_SF[rows])
        return out_SF

    @staticmethod
    def backward(ctx: Any, grad_SF: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows_SD, weight_XDF = ctx.saved_tensors
        grad_rows = torch.empty_like(rows_SD) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight_XDF) if ctx.needs_input_grad[1] else None
        for expert, rows in ctx.spans:
            if grad_rows is not None:
                torch.mm(grad_SF[rows], weight_XDF[expert].mT, out=grad_rows[rows])
            if grad_weight is not None:
                grad_weight[expert] = rows_SD[rows].mT @ grad_SF[rows]
        return grad_rows, grad_weight, None


def _spans(ends_X: Tensor) -> list[tuple[int, slice]]:
    """Return the rows of each expert that has some."""
    begin, found = 0, []
    for expert, end in enumerate(ends_X.tolist()):
        if end > begin:
            found.append((expert, slice(begin, end)))
        begin = end
    return found
