"""Attention of short documents in blocks: the value and gradient of torch's own in fp64, and the bits of a document alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from mt_core.nn import BlockContext, SdpaAttention
from mt_core.nn import short as module
from mt_core.nn.short import attend_in_blocks, is_faster_in_blocks

SHAPES = [(2, 300, 4, 2, 128), (1, 512, 3, 1, 64), (2, 77, 2, 2, 64), (1, 130, 2, 2, 256), (3, 16, 4, 2, 8)]
"""Rows, tokens, query heads, key heads, width."""


@pytest.fixture(autouse=True)
def measured_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run the same paths on any processor."""
    monkeypatch.setattr(module, "processor_has", lambda *features: True)


def inputs(rows: int, length: int, heads: int, kv_heads: int, width: int, of_values: int | None = None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(heads, width), (kv_heads, width), (kv_heads, of_values or width), (heads, of_values or width)]
    return [torch.randn(rows, length, *shape, generator=generator) for shape in shapes]


def kernel(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)


def results(function: Any, tensors: list[Tensor], *options: Any) -> list[Tensor]:
    """Output and gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors[:3]]
    out = function(*leaves, *options)
    return [out.detach(), *torch.autograd.grad(out, leaves, tensors[3])]


def exact(tensors: list[Tensor], *options: Any) -> list[Tensor]:
    with sdpa_kernel(SDPBackend.MATH):
        return results(kernel, [x.double() for x in tensors], *options)


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("scale", [None, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
def test_fp32_equals_fp64_to_1e_6_with_its_gradients(shape: tuple[int, ...], scale: float | None) -> None:
    tensors = inputs(*shape)
    found = results(attend_in_blocks, tensors, scale)
    assert max(map(error, found, exact(tensors, scale))) < 1e-6


def test_values_may_have_another_width() -> None:
    tensors = inputs(2, 150, 4, 2, 48, of_values=32)
    assert max(map(error, results(attend_in_blocks, tensors, None), exact(tensors))) < 1e-6
    halves = [x.bfloat16() for x in tensors]
    assert max(map(error, results(attend_in_blocks, halves, None), exact(halves))) < 1e-2


@pytest.mark.parametrize("has_amx", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_is_as_near_to_fp64_as_torchs_kernel(
    shape: tuple[int, ...], has_amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its forward is the kernel's where the processor has AMX."""
    monkeypatch.setattr(module, "processor_has", lambda *features: has_amx)
    tensors = [x.bfloat16() for x in inputs(*shape)]
    wanted, theirs = exact(tensors), results(kernel, tensors)
    found = results(attend_in_blocks, tensors, None)
    assert max(map(error, found, wanted)) < 1.2 * max(map(error, theirs, wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scores", [1, 2**30])
def test_a_document_has_the_bits_that_it_has_alone(
    dtype: torch.dtype, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands before it in its row, or beside it, and however many rows are done together."""
    lengths = [70, 256, 300, 20]
    tensors = [x.to(dtype) for x in inputs(3, sum(lengths), 4, 2, 128)]
    ids = torch.tensor([[place for place, length in enumerate(lengths) for _ in range(length)]] * 3)
    attention = SdpaAttention()
    alone = []
    for row in range(3):
        parts = zip(*(x[row : row + 1].split(lengths, 1) for x in tensors), strict=True)
        each = [results(attention, list(part), BlockContext(ids[:1, :n], ids[:1, :n] * 0, attention))
                for part, n in zip(parts, lengths, strict=True)]  # fmt: skip
        alone.append([torch.cat(pieces, 1) for pieces in zip(*each, strict=True)])
    monkeypatch.setattr(module, "SCORES", {dtype: scores})
    packed = results(attention, tensors, BlockContext(ids, ids, attention))
    assert all(torch.equal(a, b) for a, b in zip(packed, map(torch.cat, zip(*alone, strict=True)), strict=True))


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that an operation returns."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = [each for each in (out if isinstance(out, tuple | list) else [out]) if isinstance(each, Tensor)]
        self.size = max([self.size, *(each.numel() for each in found)])
        return out


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 8), (torch.bfloat16, 4)])
def test_no_tensor_is_as_large_as_all_pairs_of_tokens(dtype: torch.dtype, share: int) -> None:
    """A block has 64 of 512 queries, or 128. Rows are done one after the other where there are many."""
    with Largest() as seen:
        results(attend_in_blocks, [x.to(dtype) for x in inputs(1, 512, 4, 4, 16)], None)
    assert seen.size <= 4 * 512**2 / share
    with Largest() as seen:
        results(attend_in_blocks, [x.to(dtype) for x in inputs(12, 512, 4, 4, 8)], None)
    assert seen.size <= max(12 * 512 * 4 * 8, module.SCORES[dtype])


def test_the_inputs_alone_are_kept_for_the_backward() -> None:
    kept: list[Tensor] = []
    leaves = [x.requires_grad_() for x in inputs(1, 300, 4, 2, 128)[:3]]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        attend_in_blocks(*leaves, None)
    assert {x.data_ptr() for x in kept} == {x.data_ptr() for x in leaves}


def chosen(length: int, heads: int, kv_heads: int, width: int, dtype: torch.dtype) -> bool:
    q, k, *_ = (x.to(dtype) for x in inputs(1, length, heads, kv_heads, width))
    return is_faster_in_blocks(q, k)


def test_blocks_are_taken_where_they_were_measured_to_win(monkeypatch: pytest.MonkeyPatch) -> None:
    half, single = torch.bfloat16, torch.float32
    assert chosen(512, 8, 4, 64, half)
    assert chosen(512, 8, 8, 64, half)
    assert not chosen(512, 8, 8, 128, half)
    assert not chosen(513, 8, 4, 64, half)
    assert not chosen(15, 8, 4, 64, half)
    assert chosen(512, 8, 8, 128, single)
    assert not chosen(512, 8, 4, 64, single)
    assert not chosen(200, 8, 4, 128, single)
    assert not chosen(512, 8, 4, 128, torch.float64)
    monkeypatch.setattr(module, "processor_has", lambda *features: False)
    assert not chosen(512, 8, 4, 64, half)


def test_another_kernel_than_auto_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, ids = inputs(1, 300, 4, 2, 128), torch.zeros(1, 300, dtype=torch.long)
    monkeypatch.setattr(module.Short, "apply", lambda *given: pytest.fail("in blocks"))
    given = BlockContext(ids, ids, SdpaAttention("flash"))
    assert torch.equal(results(given.attention, tensors, given)[0], kernel(*tensors[:3]))
