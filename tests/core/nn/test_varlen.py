"""Packed rows go to torch's variable-length kernel by whichever signature it has, and give what documents give one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_core.nn import BlockContext, SdpaAttention
from mt_core.nn import varlen as module

LENGTHS = ((5, 9, 2), (16,))
"""Tokens of the documents of two rows."""


def reference(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, window: int, scale: float | None) -> Tensor:
    """What flash attention computes, (T, N, H), with a mask over all pairs; as many heads of keys as of queries."""
    assert q.shape == k.shape == v.shape, "the kernel refuses other heads without enable_gqa"
    place = torch.arange(len(q))
    document = torch.bucketize(place, bounds[1:-1].long(), right=True)
    back = place[:, None] - place
    mask = (document[:, None] == document) & (back >= 0) & ((window < 0) | (back <= window))
    scores = torch.einsum("tnh,snh->nts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.einsum("nts,snh->tnh", scores.masked_fill(~mask, -torch.inf).softmax(-1), v)


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
    return reference(query, key, value, cu_seq_q, -1, None)


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
    return reference(query, key, value, cu_seq_q, window_size[0], scale)


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
    return reference(query, key, value, cu_seq_q, window_size[0], scale)


KERNELS: dict[str, Callable[..., Tensor] | None] = {
    "2.9": None,
    "2.10": torch_2_10,
    "2.11": torch_2_11,
    "2.12": torch_2_12,
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 3, 40])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_every_signature_gives_what_documents_give_one_by_one(
    monkeypatch: pytest.MonkeyPatch, kernel: str, kv_heads: int, window: int | None, scale: float | None
) -> None:
    """1e-5, value and gradients: sums in another order. What a kernel has no argument for goes another way, not to a TypeError."""
    torch.manual_seed(0)
    ids = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in LENGTHS])
    context = BlockContext(ids, ids, SdpaAttention(), document_lengths=LENGTHS)
    tensors = [torch.randn(2, 16, heads, 8, requires_grad=True) for heads in (4, kv_heads, kv_heads)]
    outs = []
    for on_gpu in (False, True):
        monkeypatch.setattr(module, "varlen_kernel", lambda: KERNELS[kernel])
        monkeypatch.setattr(SdpaAttention, "_has_flash", lambda self, q: on_gpu)  # noqa: B023 - used up in this round
        out = SdpaAttention()(*tensors, context, scale=scale, window=window)
        outs.append((out, torch.autograd.grad(out.square().sum(), tensors)))
    (plain, gradients), (ours, ours_too) = outs
    torch.testing.assert_close(ours, plain, atol=3e-5, rtol=1e-5)
    for got, wanted in zip(ours_too, gradients, strict=True):
        torch.testing.assert_close(got, wanted, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["2.10", "2.11", "2.12"])
def test_the_kernel_is_used_where_it_can_do_it(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    from mt_core.nn.blocks import Form

    monkeypatch.setattr(module, "varlen_kernel", lambda: KERNELS[kernel])
    tensors = [torch.randn(2, 16, heads, 8) for heads in (4, 2, 2)]
    assert module.varlen(*tensors, LENGTHS, Form(0.7, None, None)) is not None
    assert (module.varlen(*tensors, LENGTHS, Form(None, 3, None)) is None) == (kernel == "2.10")


def test_the_installed_torch_has_a_signature_that_is_known() -> None:
    """Its arguments are those that are passed; a kernel that is renamed or rebuilt shows here, without a GPU."""
    import inspect

    kernel = module.varlen_kernel()
    assert kernel is not None
    known = set(inspect.signature(kernel).parameters)
    assert {"cu_seq_q", "cu_seq_k", "max_q", "max_k"} <= known
    assert {"window_size", "is_causal"} & known
