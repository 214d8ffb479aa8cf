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
from mt_core.nn.fused import apply_function, swiglu
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
        if self.exchange is None:
            out_SD = self._outputs(lambda x_ND: dispatch(x_ND, order), x_ND, order.ends_X)
        else:
            received = self.exchange(dispatch(x_ND, order), order.ends_X)
            out_SD = received.back(self._outputs(lambda rows_RD: rows_RD, received.rows_RD, received.ends_E))
        return combine(out_SD, choice.weights_NK, order)

    def _outputs(self, make_rows: Callable[[Tensor], Tensor], x: Tensor, ends_X: Tensor) -> Tensor:
        inner_SE = self._product(make_rows, x, self.layout.inner, ends_X)
        return self._product(self._activate, inner_SE, "down_proj", ends_X)

    def _activate(self, inner_SE: Tensor) -> Tensor:
        n_parts = len(self.layout.projections) - 1
        if self.layout.interleaved:
            return self.activation(*(inner_SE[:, at::n_parts] for at in range(n_parts)))
        return self.activation(*inner_SE.chunk(n_parts, -1))

    def _product(self, make_rows: Callable[[Tensor], Tensor], x: Tensor, name: str, ends_X: Tensor) -> Tensor:
        weight, bias = self._parameters[name], self._parameters.get(f"{name}_bias")
        assert weight is not None, f"experts without {name}"
        out = grouped_product(make_rows, x, weight, ends_X, transposed=self.layout.transposed)
        return out if bias is None else out + bias[expert_of_rows(ends_X, len(out))]

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
        rows_SD = dispatch(x_ND, order)
        begin, parts = 0, []
        for expert, end in zip(self, order.ends_X.tolist(), strict=True):
            parts.append(expert(rows_SD[begin:end]) if end > begin else expert(x_ND[:1])[:0])
            begin = end
        return combine(torch.cat(parts), choice.weights_NK, order)


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


def dispatch(x_ND: Tensor, order: Order) -> Tensor:
    """Return a row for each choice, sorted by expert, (S, D); gradients of a token's rows are added up in fp32, in the order of choice."""
    return apply_function(_Dispatch, x_ND, order)


def combine(out_SD: Tensor, weights_NK: Tensor, order: Order) -> Tensor:
    """Return the weighted sum of each token's rows, (N, D), added up in fp32 in the order of its choice."""
    return apply_function(_Combine, out_SD, weights_NK, order)


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, order: Order) -> Tensor:
        ctx.order = order
        return x_ND.index_select(0, order.choices_S // order.places_NK.shape[1])

    @staticmethod
    def backward(ctx: Any, grad_SD: Tensor) -> tuple[Tensor, None]:
        places_NK: Tensor = ctx.order.places_NK
        rows_NKD = grad_SD.index_select(0, places_NK.flatten()).view(*places_NK.shape, -1)
        return rows_NKD.sum(1, dtype=torch.float32).to(grad_SD.dtype), None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out_SD: Tensor, weights_NK: Tensor, order: Order) -> Tensor:
        ctx.save_for_backward(out_SD, weights_NK)
        ctx.order = order
        total_ND = out_SD.new_zeros(len(weights_NK), out_SD.shape[1], dtype=torch.float32)
        for places_N, weights_N in zip(order.places_NK.unbind(1), weights_NK.unbind(1), strict=True):
            total_ND.addcmul_(out_SD.index_select(0, places_N).float(), weights_N.float()[:, None])
        return total_ND.to(out_SD.dtype)

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        out_SD, weights_NK = ctx.saved_tensors
        order: Order = ctx.order
        grad_SD = grad_ND.index_select(0, order.choices_S // weights_NK.shape[1])
        grad_out_SD = grad_weights_NK = None
        if ctx.needs_input_grad[1]:
            shares_S = torch.linalg.vecdot(grad_SD.float(), out_SD.float())
            grad_weights_NK = shares_S[order.places_NK].to(weights_NK.dtype)
        if ctx.needs_input_grad[0]:
            weights_S = weights_NK.flatten()[order.choices_S].float()
            grad_out_SD = (grad_SD * weights_S[:, None]).to(out_SD.dtype)
        return grad_out_SD, grad_weights_NK, None


# --------------------------------------------------------------------------------------- a product for each expert


def grouped_product(
    make_rows: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor, ends_X: Tensor, *, transposed: bool
) -> Tensor:
    """(S, F): the rows of each expert, ``make_rows(x)`` (S, D), times its matrix of ``weight``, (X, D, F) if ``transposed`` else (X, F, D).

    The rows are made again in the backward, with the same bits: ``x`` alone is kept.
    """
    return apply_function(_GroupedProduct, make_rows, x, weight, ends_X, transposed)


class _GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, make_rows: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor, ends_X: Tensor, transposed: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight, ends_X)
        ctx.make_rows, ctx.transposed = make_rows, transposed
        return _multiply(make_rows(x), weight if transposed else weight.mT, ends_X)

    @staticmethod
    def backward(ctx: Any, grad_SF: Tensor) -> tuple[None, Tensor | None, Tensor | None, None, None]:
        x, weight, ends_X = ctx.saved_tensors
        _, of_x, of_weight, _, _ = ctx.needs_input_grad
        with torch.enable_grad():
            own_x = x.detach().requires_grad_(of_x)
            rows_SD = ctx.make_rows(own_x)
        grad_x = grad_weight = None
        if of_weight:
            left, right = (rows_SD.detach(), grad_SF) if ctx.transposed else (grad_SF, rows_SD.detach())
            grad_weight = _multiply_transposed(left, right, ends_X)
        if of_x:
            grad_SD = _multiply(grad_SF, weight.mT if ctx.transposed else weight, ends_X)
            (grad_x,) = torch.autograd.grad(rows_SD, own_x, grad_SD)
        return None, grad_x, grad_weight, None, None


def _multiply(rows_SD: Tensor, weight_XDF: Tensor, ends_X: Tensor) -> Tensor:
    """(S, D), (X, D, F) -> (S, F): the rows of each expert times its matrix, by torch's grouped product where that runs."""
    if _has_grouped_mm(rows_SD, weight_XDF.shape[2]):
        return functional.grouped_mm(rows_SD, weight_XDF, offs=ends_X)
    out_SF = rows_SD.new_empty(len(rows_SD), weight_XDF.shape[2])
    for expert, rows in _spans(ends_X):
        torch.mm(rows_SD[rows], weight_XDF[expert], out=out_SF[rows])
    return out_SF


def _multiply_transposed(left_SA: Tensor, right_SB: Tensor, ends_X: Tensor) -> Tensor:
    """(S, A), (S, B) -> (X, A, B): the transposed left rows of each expert times its right ones."""
    if _has_grouped_mm(left_SA, right_SB.shape[1]):
        return functional.grouped_mm(left_SA.mT, right_SB, offs=ends_X)
    out_XAB = left_SA.new_zeros(len(ends_X), left_SA.shape[1], right_SB.shape[1])
    for expert, rows in _spans(ends_X):
        torch.mm(left_SA[rows].mT, right_SB[rows], out=out_XAB[expert])
    return out_XAB


def _has_grouped_mm(rows_SD: Tensor, n_outputs: int) -> bool:
    """Return whether torch (from 2.10) has a grouped product here: on a CPU or compute capability 8.0, for rows of whole 16 bytes."""
    if not hasattr(functional, "grouped_mm") or rows_SD.device.type not in ("cpu", "cuda"):
        return False
    if any(size * rows_SD.element_size() % 16 for size in (rows_SD.shape[1], n_outputs)):
        return False
    return rows_SD.device.type == "cpu" or torch.cuda.get_device_capability(rows_SD.device) >= (8, 0)


def _spans(ends_X: Tensor) -> list[tuple[int, slice]]:
    """Return the rows of each expert that has some."""
    begin, found = 0, []
    for expert, end in enumerate(ends_X.tolist()):
        if end > begin:
            found.append((expert, slice(begin, end)))
        begin = end
    return found
