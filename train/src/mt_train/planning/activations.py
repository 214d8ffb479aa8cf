"""Memory that layers keep for their backward, counted without computing: each runs once on tensors that have a shape and no memory.

Shapes: B rows, T tokens, S key tokens (here T), D model width, N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from mt_core.nn import BlockContext, Layer, TokenwiseMLP, geglu, swiglu
from mt_core.nn.blocks import pad_widths
from mt_core.nn.context import AttentionOptions
from mt_train.planning.memory import LayerActivations

_GATES = (swiglu, geglu)


def layer_activations(
    layers: Sequence[Layer], *, rows: int, tokens: int, dtype: torch.dtype
) -> list[LayerActivations] | None:
    """Count the activations of embedding, blocks and norm; the head is ``memory.head_activations``. Equal shapes are counted once.

    ``None`` for a model whose forward looks at values, which these tensors do not have.
    """
    found: dict[Any, LayerActivations] = {}
    counted = []
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _GroupedProducts():
            hidden = torch.zeros(rows, tokens, dtype=torch.long)
            for number, layer in enumerate(layers[:-1]):
                is_block = 0 < number < len(layers) - 2
                context = _context(rows, tokens) if is_block else None
                key = (is_block, *((name, p.shape, p.requires_grad) for name, p in layer.module.named_parameters()))
                if key not in found or number == 0:
                    found[key], hidden = _count(layer.module, hidden, context, dtype)
                counted.append(found[key])
    except (RuntimeError, NotImplementedError):  # how fake tensors refuse what needs values
        return None
    return counted


@contextmanager
def imitate_run(layers: Sequence[Layer], *, hooked: bool, has_kernels: bool) -> Iterator[None]:
    """Let layers be called as in a run: with hooks on every module at ZeRO 3 (``hooked``), and with activations by Liger's kernels.

    Functions that keep less than the parts they stand for then leave the call to these.
    """
    modules = {module for layer in layers for module in layer.module.modules()}
    gates: dict[Any, Any] = {}
    if has_kernels:
        gates = {module: module.gate for module in modules if getattr(module, "gate", None) in _GATES}
    hooks = [module.register_forward_hook(_do_nothing) for module in modules if hooked]
    for module in gates:
        module.gate = _kernel
    try:
        yield
    finally:
        for module, gate in gates.items():
            module.gate = gate
        for hook in hooks:
            hook.remove()


def _do_nothing(module: nn.Module, inputs: Any, output: Any) -> None:
    """Stand for DeepSpeed's hook, which gathers and frees weights."""


def _kernel(gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    """Keep what Liger's kernel of an activation keeps: both inputs."""
    return swiglu(gate_BTF, up_BTF)


def _count(
    module: nn.Module, hidden: Tensor, context: BlockContext | None, dtype: torch.dtype
) -> tuple[LayerActivations, Tensor]:
    weights = {
        name: torch.empty(p.shape, dtype=dtype, requires_grad=p.requires_grad) for name, p in module.named_parameters()
    }
    if hidden.is_floating_point():
        hidden = hidden.detach().requires_grad_()
    attention = _Attention()
    with count_kept(list(weights.values())) as sizes:
        seen = None if context is None else replace(context, attention=attention)
        out = functional_call(module, weights, (hidden,) if seen is None else (hidden, seen))
    tile = max((_count_tile(each, hidden) for each in module.modules() if isinstance(each, TokenwiseMLP)), default=0)
    kept, entering = sum(sizes.values()), _bytes(hidden)
    return LayerActivations(kept=kept, entering=entering, attention=attention.given, tile=tile), out


def _count_tile(mlp: TokenwiseMLP, hidden: Tensor) -> int:
    """Bytes that one tile of an MLP keeps while it is computed again; 0 where it computes all tokens at once."""
    if mlp.tile_tokens is None:
        return 0
    weights = {name: torch.empty(p.shape, dtype=hidden.dtype, requires_grad=True) for name, p in mlp.named_parameters()}
    x = hidden.new_empty(mlp.tile_tokens, hidden.shape[-1], requires_grad=True)
    with count_kept(list(weights.values())) as sizes:
        functional_call(mlp, weights, (x,))
    return sum(sizes.values())


@contextmanager
def count_kept(weights: list[Tensor]) -> Iterator[dict[int, int]]:
    """Bytes of each storage that autograd keeps, weights apart."""
    own = {_storage(weight) for weight in weights}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no storage takes another one's number

    def pack(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        if _storage(tensor) not in own:
            sizes[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


class _GroupedProducts(TorchFunctionMode):
    """Stands in for torch's grouped product, which refuses fp32 tensors without memory: its output, and what it keeps for the backward."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in ("grouped_mm", "_grouped_mm"):
            return _GroupedProduct.apply(*args[:2])  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _GroupedProduct(torch.autograd.Function):
    """(S, D), (X, D, F) -> (S, F), both kept for the backward; S rows sorted by expert, X experts, F outputs."""

    @staticmethod
    def forward(ctx: Any, rows_SD: Tensor, weight_XDF: Tensor) -> Tensor:
        ctx.save_for_backward(rows_SD, weight_XDF)
        return rows_SD.new_empty(rows_SD.shape[0], weight_XDF.shape[2])


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _context(rows: int, tokens: int) -> BlockContext:
    """Rows of one document each."""
    positions_BT = torch.zeros(rows, tokens, dtype=torch.long)
    documents_BT = torch.zeros(rows, tokens, dtype=torch.long)
    return BlockContext(
        positions_BT=positions_BT,
        document_ids_BT=documents_BT,
        attention=_Attention(),
        document_lengths=((tokens,),) * rows,
    )


class _Attention:
    """Attention without memory, which counts the bytes that it gives."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(
        self,
        q_BTNH: Tensor,
        k_BSKH: Tensor,
        v_BSKW: Tensor,
        context: BlockContext,
        **options: Unpack[AttentionOptions],
    ) -> Tensor:
        out_BTNW: Tensor = _FlashAttention.apply(*pad_widths(q_BTNH, k_BSKH, v_BSKW))  # type: ignore[no-untyped-call]
        self.given += _bytes(out_BTNW) + 4 * out_BTNW.shape[:3].numel()
        return out_BTNW[..., : v_BSKW.shape[3]]


class _FlashAttention(torch.autograd.Function):
    """Attention that keeps what the flash kernel does (https://arxiv.org/abs/2205.14135): its inputs, its output, a number a query."""

    @staticmethod
    def forward(ctx: Any, q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor) -> Tensor:
        out_BTNH = torch.empty_like(q_BTNH)
        ctx.save_for_backward(q_BTNH, k_BSKH, v_BSKH, out_BTNH, q_BTNH.new_empty(q_BTNH.shape[:3], dtype=torch.float32))
        return out_BTNH
