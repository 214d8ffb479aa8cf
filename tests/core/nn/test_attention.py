"""Windows, chunks, soft-caps, sinks and values of another width: the value and gradient of the plain formula, without its memory."""

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
from mt_core.nn import BlockContext, KVCache, SdpaAttention, attention, flex
from mt_core.nn import blocks as module
from mt_core.nn.blocks import Form
from mt_core.nn.context import AttentionOptions
from mt_core.nn.sinks import CpuFlash


def context(lengths: list[list[int]], cache: KVCache | None = None) -> BlockContext:
    ids = torch.tensor([[number for number, length in enumerate(row) for _ in range(length)] for row in lengths])
    return BlockContext(positions_BT=ids, document_ids_BT=ids, attention=SdpaAttention(), cache=cache)


def inputs(
    rows: int, length: int, heads: int, kv_heads: int, width: int = 8, seed: int = 0, of_values: int | None = None
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    widths = [(heads, width), (kv_heads, width), (kv_heads, of_values or width)]
    return [torch.randn(rows, length, *each, generator=generator, requires_grad=True) for each in widths]


def plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """All scores at once; ``seen`` is (B, T, S)."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = torch.einsum("btnh,bsnh->bnts", q, k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen[:, None], -math.inf)
    if sinks is not None:
        column = sinks.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1)[..., : k.shape[1]]
    return torch.einsum("bnts,bsnh->btnh", weights, v)


def seen_by(documents: Tensor, window: int | None, chunk: int | None = None, padding: Tensor | None = None) -> Tensor:
    """(B, T, T), written down token by token: nothing is shared with what it is compared with."""
    rows, length = documents.shape
    seen = torch.zeros(rows, length, length, dtype=torch.bool)
    for b, row in enumerate(documents.tolist()):
        first = 0 if padding is None else int(padding[b])
        begin = {name: place for place, name in reversed(list(enumerate(row)))}
        for t in range(length):
            for s in range(max(0, t + 1 - (window or length)), t + 1):
                if row[s] != row[t] or s < first:
                    continue
                place_t, place_s = (place - max(first, begin[row[t]]) for place in (t, s))
                seen[b, t, s] = chunk is None or place_t // chunk == place_s // chunk
            seen[b, t, t] = True  # padding itself, whose result nobody reads
    return seen


@settings(max_examples=120, deadline=None)
@given(
    documents=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    rows=st.integers(1, 2),
    window=st.none() | st.integers(1, 50),
    chunk=st.none() | st.integers(1, 50),
    softcap=st.none() | st.floats(0.5, 20),
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1), (3, 1)]),
    of_values=st.sampled_from([8, 4, 12]),
    scale=st.none() | st.floats(0.05, 1),
    with_sinks=st.booleans(),
)
@example([10, 9], 1, 9, None, None, (2, 1), 8, None, False)  # one longer than the window, one as long
@example([10, 7], 2, None, 5, None, (2, 1), 8, None, True)  # chunks that fill a document, and not
@example([30], 2, None, None, None, (4, 2), 4, None, True)  # a fast kernel, of values that are narrow
def test_all_options_equal_the_plain_formula(
    documents: list[int],
    rows: int,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
    heads: tuple[int, int],
    of_values: int,
    scale: float | None,
    with_sinks: bool,
) -> None:
    """Each document of a packed row for itself; blocks end anywhere in it. In fp64: 1e-10."""
    given_ = context([documents] * rows)
    ours = [x.detach().double().requires_grad_() for x in inputs(rows, sum(documents), *heads, of_values=of_values)]
    sinks = torch.linspace(-2, 3, heads[0]).double().requires_grad_() if with_sinks else None
    options: AttentionOptions = {
        "scale": scale,
        "window": window,
        "softcap": softcap,
        "sinks_N": sinks,
        "chunk": chunk,
    }
    out = SdpaAttention()(*ours, given_, **options)
    seen = seen_by(given_.document_ids_BT, window, chunk)
    expected = plain_attention(*ours, seen, scale=scale or 8**-0.5, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)
    compare_gradients(out, expected, [*ours, *([] if sinks is None else [sinks])])


def compare_gradients(out: Tensor, expected: Tensor, leaves: list[Tensor], tolerance: float = 1e-10) -> None:
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    mine = torch.autograd.grad(out, leaves, grad)
    for got, wanted in zip(mine, torch.autograd.grad(expected, leaves, grad), strict=True):
        torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("padding", [[0, 0], [0, 5], [3, 9]])
@pytest.mark.parametrize(
    ("window", "chunk", "softcap"),
    [
        (None, None, None),
        (4, None, None),
        (None, None, 2.0),
        (6, None, 2.0),
        (1, None, None),
        (None, 5, None),
        (3, 4, 2.0),
    ],
)
@pytest.mark.parametrize("new", [1, 2, 7, 12])
@pytest.mark.parametrize(("with_sinks", "of_values"), [(False, 8), (True, 8), (True, 4), (False, 12)])
def test_new_tokens_after_a_cache_see_what_they_may_and_no_padding(
    new: int,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
    padding: list[int],
    with_sinks: bool,
    of_values: int,
) -> None:
    length = 12
    ours = [x.detach().double().requires_grad_() for x in inputs(2, length, 4, 2, of_values=of_values)]
    sinks = torch.linspace(-2, 3, 4).double().requires_grad_() if with_sinks else None
    first = torch.tensor(padding)
    cache = KVCache(first if any(padding) else None)
    given_ = BlockContext(torch.zeros(2, new), torch.zeros(2, new), SdpaAttention(), cache)
    options: AttentionOptions = {"window": window, "softcap": softcap, "chunk": chunk, "sinks_N": sinks}
    out = SdpaAttention()(ours[0][:, -new:], *ours[1:], given_, **options)
    seen = seen_by(torch.zeros(2, length), window, chunk, first)
    expected = plain_attention(*ours, seen, scale=8**-0.5, softcap=softcap, sinks=sinks)[:, -new:]
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)
    compare_gradients(out, expected, [*ours, *([] if sinks is None else [sinks])])


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


def largest(length: int, documents: int = 1, *, of_values: int = 4, **options: Any) -> int:
    tensors = inputs(1, length, 4, 2, width=4, of_values=of_values)
    given_ = context([[length // documents] * documents])
    with Largest() as seen:
        SdpaAttention()(*tensors, given_, **options).sum().backward()
    return seen.size


SINKS = torch.arange(4.0)


@pytest.mark.parametrize(
    ("reach", "options"),
    [
        (32, {"window": 32}),
        (32, {"window": 32, "softcap": 5.0}),
        (None, {"softcap": 5.0}),
        (32, {"window": 32, "sinks_N": SINKS}),
        (None, {"softcap": 5.0, "sinks_N": SINKS}),
        (None, {"sinks_N": SINKS}),
        (None, {"of_values": 2}),
        (None, {"of_values": 6, "sinks_N": SINKS}),
        (32, {"chunk": 32}),
    ],
)
def test_no_tensor_of_a_step_is_as_large_as_all_pairs_of_tokens(reach: int | None, options: dict[str, Any]) -> None:
    """Not for one head, although there are 4; twice the tokens take twice the numbers at most."""
    if reach is not None:
        assert largest(512, **options) < 512**2 / 8
    assert largest(512, **options) < 4 * 512**2 / 2
    assert largest(1024, **options) <= 2 * largest(512, **options)
    assert largest(1024, 2, **options) <= 2 * largest(512, **options)


@pytest.mark.parametrize("sinks", [None, SINKS])
def test_what_is_kept_for_the_backward_are_the_inputs(sinks: Tensor | None) -> None:
    kept: list[Tensor] = []
    tensors = inputs(1, 300, 4, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        SdpaAttention()(*tensors, context([[300]]), window=20, softcap=4.0, sinks_N=sinks)
    tensors += [] if sinks is None else [sinks]
    assert {tensor.data_ptr() for tensor in kept} == {tensor.data_ptr() for tensor in tensors}


def test_sinks_without_a_window_keep_what_flash_attention_keeps() -> None:
    """The inputs, the output, a number a query and the sinks; in bf16 too, near fp32."""
    kept: list[Tensor] = []
    tensors = [x.detach().bfloat16().requires_grad_() for x in inputs(1, 300, 4, 2)]
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        out = SdpaAttention()(*tensors, context([[300]]), sinks_N=SINKS)
    assert sorted(x.numel() for x in kept) == sorted([*(x.numel() for x in tensors), 300 * 4 * 8, 300 * 4, 4])
    exact = SdpaAttention()(*(x.float() for x in tensors), context([[300]]), sinks_N=SINKS)
    torch.testing.assert_close(out.float(), exact, atol=2e-2, rtol=2e-2)


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


def test_a_chunk_as_long_as_the_text_is_no_chunk(score_counts: list[int]) -> None:
    """Bit for bit, by the fast kernel; a shorter one is, where no key is hidden in it."""
    tensors = [x.detach() for x in inputs(2, 40, 4, 2)]
    plain = SdpaAttention()(*tensors, context([[40], [40]]))
    assert torch.equal(SdpaAttention()(*tensors, context([[40], [40]]), chunk=40), plain)
    SdpaAttention()(*tensors, context([[40], [40]]), chunk=10)
    new = BlockContext(torch.zeros(2, 1), torch.zeros(2, 1), SdpaAttention(), KVCache())
    SdpaAttention()(tensors[0][:, -1:], *tensors[1:], new, chunk=15, sinks_N=SINKS)
    assert not score_counts, "neither pieces of a document nor a token after a cache go through blocks"


def test_without_torchs_own_kernel_sinks_are_done_in_blocks(
    monkeypatch: pytest.MonkeyPatch, score_counts: list[int]
) -> None:
    tensors = [x.detach() for x in inputs(1, 40, 4, 2)]
    fast = SdpaAttention()(*tensors, context([[40]]), sinks_N=SINKS)
    assert not score_counts
    monkeypatch.setattr(CpuFlash, "is_installed", lambda: False)
    torch.testing.assert_close(SdpaAttention()(*tensors, context([[40]]), sinks_N=SINKS), fast, atol=2e-6, rtol=1e-5)
    assert score_counts


def test_a_text_read_in_pieces_into_a_cache_is_the_text_read_at_once() -> None:
    """With every option, for rows of other lengths: what a cache holds is keys and values of two widths."""
    documents, options = [23, 17], {"window": 6, "chunk": 9, "softcap": 3.0, "sinks_N": SINKS}
    tensors = [x.detach() for x in inputs(2, 23, 4, 2, of_values=6)]
    expected = [
        SdpaAttention()(*(x[b : b + 1, :n] for x in tensors), context([[n]]), **options)
        for b, n in enumerate(documents)
    ]
    late = [torch.cat([x[:1], x[1:].roll(6, 1)]) for x in tensors]  # padding stands in front
    cache, outs = KVCache(torch.tensor([0, 6])), []
    for start, end in ((0, 8), (8, 9), (9, 20), (20, 21), (21, 22), (22, 23)):
        piece = BlockContext(torch.zeros(2, end - start), torch.zeros(2, end - start), SdpaAttention(), cache)
        k, v = cache.append(0, *(x[:, start:end] for x in late[1:]))
        outs.append(SdpaAttention()(late[0][:, start:end], k, v, piece, **options))
    out = torch.cat(outs, 1)
    torch.testing.assert_close(out[:1], expected[0], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(out[1:, 6:], expected[1], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slope": 2}, "no option slope; it has scale, window, softcap, sinks_N, chunk"),
        ({"window": 0}, "window of attention is 0; give one above 0"),
        ({"chunk": -4}, "chunk of attention is -4"),
        ({"softcap": 0.0}, "softcap of attention is 0.0"),
        ({"sinks_N": torch.zeros(2)}, r"sinks_N is \(2,\); give one for each of the 4 query heads"),
    ],
)
def test_wishes_that_no_attention_has_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SdpaAttention()(*inputs(1, 10, 4, 2), context([[10]]), **options)


@pytest.mark.parametrize("heads", [(4, 3, 3, 8, 8), (4, 2, 4, 8, 8), (4, 2, 2, 8, 6)])
def test_tensors_that_do_not_fit_are_refused_with_their_shapes(heads: tuple[int, ...]) -> None:
    """Heads of queries, keys and values; widths of queries and keys."""
    q_heads, k_heads, v_heads, q_width, k_width = heads
    q, k, v = torch.zeros(1, 5, q_heads, q_width), torch.zeros(1, 5, k_heads, k_width), torch.zeros(1, 5, v_heads, 8)
    with pytest.raises(UsageError, match=r"do not fit: \(B, T, N, H\)"):
        SdpaAttention()(q, k, v, context([[5]]))


@pytest.mark.parametrize("kernel", ["efficient", "flash"])
def test_a_kernel_that_cannot_do_it_is_refused_and_not_replaced(kernel: str) -> None:
    tensors = inputs(1, 10, 2, 2)
    forced = SdpaAttention(kernel)
    with pytest.raises(UsageError, match=r"--train\.attention auto"):
        forced(*tensors, context([[10]]), softcap=3.0)
    with pytest.raises(UsageError, match=kernel):
        forced(*tensors, context([[10]]), window=4)
    if kernel == "efficient":
        with pytest.raises(UsageError, match="no sinks here"):
            forced(*tensors, context([[10]]), sinks_N=torch.zeros(2))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(("softcap", "with_sinks", "width"), [(2.0, False, 16), (2.0, True, 16), (None, True, 8)])
def test_what_flex_attention_is_told_is_the_plain_formula(
    window: int | None, softcap: float | None, with_sinks: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncompiled, in the forward, and backward to the sinks: all of it that runs without a GPU."""
    masks = flex_attention.create_block_mask
    monkeypatch.setattr(flex, "_kernel", lambda: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "create_block_mask", lambda *given, _compile, **named: masks(*given, **named))
    given_ = context([[20, 9, 11], [13, 27]])
    q, k, v = (x.detach() for x in inputs(2, 40, 4, 2, width=16, of_values=width))
    sinks = SINKS.clone().requires_grad_() if with_sinks else None
    shared: dict[Any, Any] = {}
    form = Form(0.3, window, softcap, sinks)
    out = flex.flexible_attention(q, k, v, ((20, 9, 11), (13, 27)), form, shared)
    monkeypatch.delattr(flex_attention, "create_block_mask")  # the second block finds what the first one made
    torch.testing.assert_close(flex.flexible_attention(q, k, v, ((20, 9, 11), (13, 27)), form, shared), out)
    seen = seen_by(given_.document_ids_BT, window)
    expected = plain_attention(q, k, v, seen, scale=0.3, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
    if sinks is not None:
        compare_gradients(out, expected, [sinks], 1e-5)


def test_on_a_gpu_sinks_go_to_flex_attention_where_no_kernel_says_its_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Form] = []
    monkeypatch.setattr(SdpaAttention, "_has_flash", lambda self, q: True)
    monkeypatch.setattr(attention, "varlen", lambda *given: None)
    monkeypatch.setattr(attention, "flexible_attention", lambda q, k, v, lengths, form, shared: told.append(form) or q)
    tensors = inputs(1, 10, 4, 2)
    SdpaAttention()(*tensors, context([[10]]), sinks_N=SINKS)
    SdpaAttention()(*tensors, context([[4, 6]]), window=3)
    assert [form.sinks_N is SINKS for form in told] == [True]
