"""Windows and soft-caps in blocks of queries: the value and gradient of the plain formula, without its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from mt_core.errors import UsageError
from mt_core.nn import BlockContext, KVCache, SdpaAttention, flex
from mt_core.nn import blocks as module
from mt_core.nn.blocks import Form


def context(lengths: list[list[int]], cache: KVCache | None = None) -> BlockContext:
    ids = torch.tensor([[number for number, length in enumerate(row) for _ in range(length)] for row in lengths])
    return BlockContext(positions_BT=ids, document_ids_BT=ids, attention=SdpaAttention(), cache=cache)


def inputs(rows: int, length: int, heads: int, kv_heads: int, width: int = 8, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, length, heads, width), (rows, length, kv_heads, width), (rows, length, kv_heads, width)]
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def plain_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, *, scale: float, softcap: float | None) -> Tensor:
    """All scores at once; ``seen`` is (B, T, S)."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = torch.einsum("btnh,bsnh->bnts", q, k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = scores.masked_fill(~seen[:, None], -math.inf).softmax(-1)
    return torch.einsum("bnts,bsnh->btnh", weights, v)


def seen_by(documents: Tensor, window: int | None) -> Tensor:
    steps = torch.arange(documents.shape[1])
    back = steps[:, None] - steps
    near = (back >= 0) & (back < (window or documents.shape[1]))
    return near & (documents[:, :, None] == documents[:, None, :])


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    rows=st.integers(1, 2),
    window=st.none() | st.integers(1, 50),
    softcap=st.none() | st.floats(0.5, 20),
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1), (3, 1)]),
    scale=st.none() | st.floats(0.05, 1),
)
@example(documents=[10, 9], rows=1, window=9, softcap=None, heads=(2, 1), scale=None)  # one longer, one as long
def test_windows_and_soft_caps_equal_the_plain_formula(
    documents: list[int],
    rows: int,
    window: int | None,
    softcap: float | None,
    heads: tuple[int, int],
    scale: float | None,
) -> None:
    """Each document of a packed row for itself; blocks end anywhere in it. The formula is in fp64, ours in fp32: 6e-8 a rounding."""
    given_ = context([documents] * rows)
    ours = inputs(rows, sum(documents), *heads)
    theirs = [x.detach().double().requires_grad_() for x in ours]
    out = SdpaAttention()(*ours, given_, scale=scale, window=window, softcap=softcap)
    seen = seen_by(given_.document_ids_BT, window)
    expected = plain_attention(*theirs, seen, scale=scale or 8**-0.5, softcap=softcap)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(grad)
    expected.backward(grad.double())
    torch.testing.assert_close(out, expected.float(), atol=2e-6, rtol=1e-5)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            mine.grad, other.grad.float(), atol=3e-5, rtol=1e-5
        )  # sums of 160 products of some units


@pytest.mark.parametrize("padding", [[0, 0], [0, 5], [3, 9]])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (4, None), (None, 2.0), (6, 2.0), (1, None)])
@pytest.mark.parametrize("new", [1, 7, 12])
def test_new_tokens_after_a_cache_see_its_window_and_no_padding(
    new: int, window: int | None, softcap: float | None, padding: list[int]
) -> None:
    length = 12
    ours = inputs(2, length, 4, 2)
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    first = torch.tensor(padding)
    cache = KVCache(first if any(padding) else None)
    given_ = BlockContext(torch.zeros(2, new), torch.zeros(2, new), SdpaAttention(), cache)
    out = SdpaAttention()(ours[0][:, -new:], *ours[1:], given_, window=window, softcap=softcap)
    seen = seen_by(torch.zeros(2, length), window) & (torch.arange(length) >= first[:, None])[:, None]
    seen |= torch.eye(length, dtype=torch.bool)  # padding itself, whose result nobody reads
    expected = plain_attention(*theirs, seen, scale=8**-0.5, softcap=softcap)[:, -new:]
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=5e-6, rtol=1e-5)


def test_bf16_is_computed_in_fp32_and_given_back_in_bf16() -> None:
    whole = inputs(1, 50, 4, 2)
    halves = [x.detach().bfloat16().requires_grad_() for x in whole]
    out = SdpaAttention()(*halves, context([[50]]), window=9, softcap=3.0)
    again = [x.detach().float().requires_grad_() for x in halves]
    exact = SdpaAttention()(*again, context([[50]]), window=9, softcap=3.0)
    assert torch.equal(out, exact.bfloat16())
    out.backward(torch.ones_like(out))
    exact.backward(torch.ones_like(exact))
    assert all(torch.equal(x.grad, y.grad.bfloat16()) for x, y in zip(halves, again, strict=True))


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that any operation returns; views count as what they show."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return out


def largest(length: int, window: int | None, softcap: float | None, documents: int = 1) -> int:
    tensors = inputs(1, length, 4, 2, width=4)
    given_ = context([[length // documents] * documents])
    with Largest() as seen:
        SdpaAttention()(*tensors, given_, window=window, softcap=softcap).sum().backward()
    return seen.size


@pytest.mark.parametrize(("window", "softcap"), [(32, None), (32, 5.0), (None, 5.0)])
def test_no_tensor_of_a_step_is_as_large_as_all_pairs_of_tokens(window: int | None, softcap: float | None) -> None:
    """Not for one head, although there are 4; twice the tokens take twice the numbers at most."""
    if window is not None:
        assert largest(512, window, softcap) < 512**2 / 8
    assert largest(512, window, softcap) < 4 * 512**2 / 2
    assert largest(1024, window, softcap) <= 2 * largest(512, window, softcap)
    assert largest(1024, window, softcap, documents=2) <= 2 * largest(512, window, softcap)


def test_what_is_kept_for_the_backward_are_the_inputs() -> None:
    kept: list[Tensor] = []
    tensors = inputs(1, 300, 4, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        SdpaAttention()(*tensors, context([[300]]), window=20, softcap=4.0)
    assert {tensor.data_ptr() for tensor in kept} == {tensor.data_ptr() for tensor in tensors}


@pytest.fixture
def score_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield how many scores each block computes."""
    found: list[int] = []
    honest = module._weights

    def watched(q: Tensor, k: Tensor, *rest: Any, **named: Any) -> Any:
        found.append(q.shape[2] * k.shape[2])
        return honest(q, k, *rest, **named)

    monkeypatch.setattr(module, "_weights", watched)
    return found


def test_a_window_costs_its_own_length_a_token(score_counts: list[int]) -> None:
    """At most twice the window and a block more, where all pairs would be 2048 a token."""
    q, k, v = (x.detach() for x in inputs(1, 2048, 1, 1))
    SdpaAttention()(q, k, v, context([[2048]]), window=64)
    assert sum(score_counts) < 2048 * 3 * 64


@pytest.mark.parametrize("kernel", ["efficient", "flash"])
def test_a_kernel_that_cannot_do_it_is_refused_and_not_replaced(kernel: str) -> None:
    tensors = inputs(1, 10, 2, 2)
    attention = SdpaAttention(kernel)
    with pytest.raises(UsageError, match=r"--train\.attention auto"):
        attention(*tensors, context([[10]]), softcap=3.0)
    with pytest.raises(UsageError, match=kernel):
        attention(*tensors, context([[10]]), window=4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 6])
def test_what_flex_attention_is_told_is_the_plain_formula(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompiled, in the forward: all of it that runs without a GPU."""
    masks = flex_attention.create_block_mask
    monkeypatch.setattr(flex, "_kernel", lambda: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "create_block_mask", lambda *given, _compile, **named: masks(*given, **named))
    given_ = context([[20, 9, 11], [13, 27]])
    q, k, v = (x.detach() for x in inputs(2, 40, 4, 2, width=16))
    out = flex.softcapped_attention(q, k, v, ((20, 9, 11), (13, 27)), Form(0.3, window, 2.0))
    expected = plain_attention(q, k, v, seen_by(given_.document_ids_BT, window), scale=0.3, softcap=2.0)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
