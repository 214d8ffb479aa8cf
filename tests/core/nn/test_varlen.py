"""Packed rows go to torch's variable-length kernel by whichever signature it has, and give what documents give one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_core.nn import BlockContext, SdpaAttention, attention
from mt_core.nn import varlen as module
from mt_core.nn.blocks import Form

LENGTHS = ((5, 9, 2), (16,))
"""Tokens of the documents of two rows."""


def scores_of(q: Tensor, k: Tensor, bounds: Tensor, window: int, scale: float | None) -> Tensor:
    """(N, T, T), with a mask over all pairs; as many heads of keys as of queries."""
    place = torch.arange(len(q))
    document = torch.bucketize(place, bounds[1:-1].long(), right=True)
    back = place[:, None] - place
    mask = (document[:, None] == document) & (back >= 0) & ((window < 0) | (back <= window))
    scores = torch.einsum("tnh,snh->nts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~mask, -torch.inf)


def reference(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, window: int, scale: float | None, aux: Any) -> Any:
    """What flash attention computes, (T, N, H), and where it is asked for, as torch has it, its log-sum-exp, (N, T)."""
    assert q.shape == k.shape == v.shape, "the kernel refuses other heads without enable_gqa, and other widths"
    scores = scores_of(q, k, bounds, window, scale)
    out = torch.einsum("nts,snh->tnh", scores.softmax(-1), v)
    return (out, scores.logsumexp(-1).detach()) if aux is not None and aux.lse else out


def reference_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: Tensor,
    scale: float | None = None,
    window_size: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As flash attention does it (https://arxiv.org/abs/2205.14135, algorithm 4): by the output and log-sum-exp that it is given."""
    window = (window_size or (-1, 0))[0]
    assert is_causal == (window < 0), "as the public function tells it"
    times = query.shape[1] // key.shape[1]
    k, v = (x.repeat_interleave(times, 1) for x in (key, value))
    weights = (scores_of(query, k, cu_seq_q, window, scale) - lse[:, :, None]).exp()
    slope = torch.einsum("tnh,snh->nts", grad_out, v) - (grad_out * out).sum(-1).T[:, :, None]
    slope = weights * slope * (query.shape[-1] ** -0.5 if scale is None else scale)
    grad_k, grad_v = torch.einsum("nts,tnh->snh", slope, query), torch.einsum("nts,tnh->snh", weights, grad_out)
    grad_k, grad_v = (x.unflatten(1, (-1, times)).sum(2) for x in (grad_k, grad_v))
    return torch.einsum("nts,snh->tnh", slope, k), grad_k, grad_v


def torch_2_10(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    return_aux: Any = None,
) -> Tensor:
    assert is_causal, "a token would see those behind it"
    return reference(query, key, value, cu_seq_q, -1, None, return_aux)


def torch_2_11(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    assert window_size[1] == 0, "a token would see those behind it"
    return reference(query, key, value, cu_seq_q, window_size[0], scale, return_aux)


def torch_2_12(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
) -> Tensor:
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert window_size[1] == 0, "a token would see those behind it"
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    return reference(query, key, value, cu_seq_q, window_size[0], scale, return_aux)


KERNELS: dict[str, Callable[..., Tensor] | None] = {
    "2.9": None,
    "2.10": torch_2_10,
    "2.11": torch_2_11,
    "2.12": torch_2_12,
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("window", "chunk"), [(None, None), (3, None), (40, None), (None, 4), (3, 4)])
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize(("with_sinks", "width"), [(False, 8), (True, 8), (True, 6), (False, 12)])
def test_every_signature_gives_what_documents_give_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    kv_heads: int,
    window: int | None,
    chunk: int | None,
    scale: float | None,
    with_sinks: bool,
    width: int,
) -> None:
    """In fp64, value and gradients. What a kernel has no argument for goes another way, not to a TypeError."""
    torch.manual_seed(0)
    ids = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in LENGTHS])
    context = BlockContext(ids, ids, SdpaAttention(), document_lengths=LENGTHS)
    shapes = [(2, 16, 4, 8), (2, 16, kv_heads, 8), (2, 16, kv_heads, width), (4,)]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    sinks = tensors[3] if with_sinks else None
    monkeypatch.setattr(module, "varlen_kernel", lambda: KERNELS[kernel])
    monkeypatch.setattr(module, "varlen_backward", lambda: reference_backward)
    monkeypatch.setattr(attention, "flexible_attention", lambda *given: None)  # it has a test of its own
    outs = []
    for on_gpu in (False, True):
        monkeypatch.setattr(SdpaAttention, "_has_flash", lambda self, q: on_gpu)  # noqa: B023 - used up in this round
        out = SdpaAttention()(*tensors[:3], context, scale=scale, window=window, chunk=chunk, sinks_N=sinks)
        outs.append((out, torch.autograd.grad(out.square().sum(), tensors[: 4 if with_sinks else 3])))
    (plain, gradients), (ours, ours_too) = outs
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=1e-10)
    for got, wanted in zip(ours_too, gradients, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-10)


def test_the_bounds_of_documents_travel_once_for_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def kernel(q: torch.Tensor, k: Any, v: Any, bounds: torch.Tensor, *rest: Any, window_size: Any) -> torch.Tensor:
        seen.append(bounds)
        return q

    monkeypatch.setattr(module, "varlen_kernel", lambda: kernel)
    tensors = [torch.randn(2, 16, 4, 8) for _ in range(3)]
    shared: dict[Any, Any] = {}
    for lengths in (LENGTHS, LENGTHS, ((16,), (8, 8))):
        module.varlen(*tensors, lengths, Form(), shared)
    assert seen[0] is seen[1]
    assert seen[2].tolist() == [0, 16, 24, 32]


@pytest.mark.parametrize("kernel", ["2.10", "2.11", "2.12"])
def test_the_kernel_is_used_where_it_can_do_it(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    monkeypatch.setattr(module, "varlen_kernel", lambda: KERNELS[kernel])
    tensors = [torch.randn(2, 16, heads, 8) for heads in (4, 2, 2)]
    assert module.varlen(*tensors, LENGTHS, Form(0.7, None, None), {}) is not None
    assert module.varlen(*tensors, LENGTHS, Form(sinks_N=torch.zeros(4)), {}) is not None
    assert (module.varlen(*tensors, LENGTHS, Form(None, 3, None), {}) is None) == (kernel == "2.10")


def test_the_installed_torch_has_a_signature_that_is_known() -> None:
    """Its arguments are those that are passed; a kernel that is renamed or rebuilt shows here, without a GPU."""
    import inspect

    kernel = module.varlen_kernel()
    assert kernel is not None
    known = set(inspect.signature(kernel).parameters)
    assert {"cu_seq_q", "cu_seq_k", "max_q", "max_k", "return_aux"} <= known
    assert {"window_size", "is_causal"} & known
    backward = module.varlen_backward()
    assert backward is not None
    theirs = [argument.name for argument in backward._schema.arguments]
    assert theirs == list(inspect.signature(reference_backward).parameters)[: len(theirs)]
